"""Adapters' settings that may come from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from tests.vla_policies.conftest import edit_json
from vla_gym.errors import BadValue
from vla_policies.modules.lora_config import LoraSettings, adapter_settings


def written(folder: Path, **changes: Any) -> Path:
    """Write an adapter's settings as peft does, with changes."""
    LoraConfig(r=3, lora_alpha=6, target_modules=["q"], base_model_name_or_path="base").save_pretrained(str(folder))
    edit_json(folder / "adapter_config.json", **changes)
    return folder


def lora_config(folder: Path) -> LoraConfig:
    return LoraConfig(**adapter_settings(folder, LoraConfig.__dataclass_fields__))


def test_what_peft_writes_is_read(tmp_path: Path) -> None:
    config = lora_config(written(tmp_path, init_lora_weights="gaussian", eva_config={"rho": 2.0}, of_tomorrow=1))
    assert (config.r, config.lora_alpha, config.target_modules) == (3, 6, {"q"})


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"megatron_config": {"x": 1}, "megatron_core": "antigravity"}, "megatron_config"),  # would be imported
        ({"layer_replication": [[0, 10**9]]}, "layer_replication"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["state_proj"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"r": 10**9}, "r, lora_alpha"),
        ({"r": "8"}, "r, lora_alpha"),
        ({"lora_alpha": 1e300}, "lora_alpha"),
        ({"alpha_pattern": {"q": 1e300}}, "lora_alpha"),
        ({"rank_pattern": {"q": 10**9}}, "lora_alpha"),
        ({"rank_pattern": {"((a*)*)*X": 8}}, "pattern"),
        ({"alpha_pattern": {"((a*)*)*X": 8}}, "pattern"),
        ({"layers_pattern": "((a*)*)*X"}, "layers_pattern"),
        *(
            ({"target_modules": pattern}, "target_modules")
            for pattern in ("((([a-z_.0-9])*)*)*X", "(a|b)+c", "(x){9}", ".*.*.*.*x", "(", 3, [3])
        ),
    ],
)
def test_no_plain_lora_and_endless_patterns_are_refused(changes: dict[str, Any], names: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=names):
        lora_config(written(tmp_path, **changes))


@pytest.mark.parametrize("pattern", [None, ["q_proj"], "all-linear", r".*\.layers\.\d+\..*\.(q_proj|v_proj)$"])
def test_patterns_of_published_adapters_are_taken(pattern: object, tmp_path: Path) -> None:
    assert adapter_settings(written(tmp_path, target_modules=pattern), ())["target_modules"] == pattern


def test_a_folders_own_settings_are_held_to_the_same() -> None:
    for settings in ({"rank": 8, "alpha": 10**30}, {"targets": "((a*)*)*X"}):
        with pytest.raises(BadValue):
            LoraSettings(**settings)
