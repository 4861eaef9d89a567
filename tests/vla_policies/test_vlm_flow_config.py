"""Configs of pi0, pi0.5 and SmolVLA: single settings by name, sizes that no network has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vla_gym.errors import BadValue, VLAZooError
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.modules.streams import GemmaShape
from vla_policies.pi0.config import NetworkShape, VisionShape
from vla_policies.pi0.config import tiny_config as tiny_pi0
from vla_policies.smolvla.config import NetworkShape as SmolVLAShape
from vla_policies.smolvla.config import tiny_config as tiny_smolvla

FULL = SmolVLAShape()


def test_settings_are_changed_where_they_belong() -> None:
    config = tiny_pi0("pi05").with_options({"num_steps": 5, "delta_dims": 6, "vlm_dtype": "bfloat16"})
    assert (config.flow.num_steps, config.learning.vlm_dtype) == (5, "bfloat16")
    assert config.preprocessing.delta_dims == 6  # type: ignore[attr-defined]
    other = tiny_smolvla().with_options({"lora": {"rank": 8}, "use_statistics": False})
    assert other.learning.lora == LoraSettings(rank=8)
    assert not other.preprocessing.use_statistics


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"noise_levle": 0.3}, "noise_level"),
        ({"prompt_state": "no"}, "prompt_state"),
        ({"train_expert_only": "false"}, "train_expert_only"),
        ({"value_hidden": [0]}, "value_hidden"),
        ({"noise_hidden": []}, "noise_hidden"),
        ({"vlm_dtype": "bfloat16", "train_expert_only": False}, "vlm_dtype"),
        ({"cache_features": 1.0, "train_expert_only": False}, "cache_features"),
        ({"cache_features": -1.0}, "cache_features"),
    ],
)
def test_option_values_are_checked(options: dict[str, Any], names: str) -> None:
    with pytest.raises(VLAZooError, match=names):
        tiny_pi0("pi0").with_options(options)


def test_every_expert_layer_reads_its_text_layer() -> None:
    assert FULL.text_layer_of == tuple(range(16))
    half = replace(FULL, expert=replace(FULL.expert, depth=8), joint_layers=())
    assert half.text_layer_of == (0, 2, 4, 6, 8, 10, 12, 14)


@pytest.mark.parametrize(
    ("shape", "changes", "names"),
    [
        (NetworkShape(), {"min_period": -1.0}, "min_period"),
        (NetworkShape(), {"vision": VisionShape(num_attention_heads=0)}, "num_attention_heads"),
        (NetworkShape(), {"expert": GemmaShape(width=64, mlp_dim=64, depth=18, head_dim=128)}, "head_dim"),
        (FULL, {"picture_size": 500}, "picture_size"),
        (FULL, {"expert": replace(FULL.expert, depth=5)}, "layers"),
        (FULL, {"expert": replace(FULL.expert, head_dim=32)}, "head_dim"),
        (FULL, {"expert": replace(FULL.expert, depth=0)}, "depth"),
    ],
)
def test_sizes_that_do_not_fit_are_named(shape: Any, changes: dict[str, Any], names: str) -> None:
    with pytest.raises(BadValue, match=names):
        replace(shape, **changes)
