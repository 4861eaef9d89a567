"""Adapters' settings that may come from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from vla_gym.errors import BadValue
from vla_policies.modules.lora import LoraSettings
from vla_policies.modules.lora_config import adapter_settings, check_pattern


def written(folder: Path, **changes: Any) -> Path:
    """Write an adapter's settings as peft does, with changes."""
    LoraConfig(r=3, lora_alpha=6, target_modules=["q"], base_model_name_or_path="base").save_pretrained(str(folder))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def lora_config(folder: Path) -> LoraConfig:
    return LoraConfig(**adapter_settings(folder, LoraConfig.__dataclass_fields__))


def test_what_peft_writes_is_read(tmp_path: Path) -> None:
    config = lora_config(written(tmp_path, init_lora_weights="gaussian", eva_config={"rho": 2.0}, of_tomorrow=1))
    assert (config.r, config.lora_alpha, config.target_modules) == (3, 6, {"q"})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"megatron_config": {"x": 1}, "megatron_core": "antigravity"}, "sets megatron_config"),  # would be imported
        ({"layer_replication": [[0, 10**9]]}, "sets layer_replication"),
        ({"use_dora": True}, "sets use_dora to True, which is not read here: merge it with peft"),
        ({"lora_bias": True}, "sets lora_bias to True"),
        ({"modules_to_save": ["state_proj"]}, "sets modules_to_save to .*, which is not read here: merge it with peft"),
        ({"init_lora_weights": "pissa"}, "convert it to plain LoRA"),
        ({"r": 10**9}, "gives 'r' as 1000000000|r of .* must be an integer in 1 .. 65536"),
        ({"r": "8"}, "must be an integer"),
        ({"lora_alpha": 1e300}, "'lora_alpha' of .* must be a number of at most 65536"),
        ({"lora_alpha": "8"}, "'lora_alpha' of .* must be a number"),
        ({"alpha_pattern": {"q": 1e300}}, "'q' of .* must be a number of at most 65536"),
        ({"rank_pattern": {"q": 10**9}}, "the rank of 'q' .* must be an integer"),
        ({"rank_pattern": {"((a*)*)*X": 8}}, "may take for ever"),
        ({"alpha_pattern": {"((a*)*)*X": 8}}, "may take for ever"),
        ({"layers_pattern": "((a*)*)*X"}, "may take for ever"),
    ],
)
def test_what_is_no_plain_lora_or_never_ends_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=says):
        lora_config(written(tmp_path, **changes))


@pytest.mark.parametrize("pattern", ["((([a-z_.0-9])*)*)*X", "(a|b)+c", "(x){9}", ".*.*.*.*x", "(", 3, [3]])
def test_a_pattern_that_may_never_end_is_refused(pattern: object) -> None:
    with pytest.raises(BadValue, match="target_modules"):
        check_pattern(pattern, "target_modules")


@pytest.mark.parametrize("pattern", [None, ["q_proj"], "all-linear", r".*\.layers\.\d+\..*\.(q_proj|v_proj)$"])
def test_patterns_of_published_adapters_are_taken(pattern: object) -> None:
    check_pattern(pattern, "target_modules")


def test_a_folders_own_settings_are_held_to_the_same() -> None:
    with pytest.raises(BadValue, match=r"LoRA's rank and alpha must be in 1 \.\. 65536, got 8 and 10{30}"):
        LoraSettings(rank=8, alpha=10**30)
    with pytest.raises(BadValue, match="LoRA's targets may take for ever"):
        LoraSettings(targets="((a*)*)*X")
