from __future__ import annotations

import json
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from vla_policies.smolvla.checkpoint import SETTINGS, expert_mlp, joint_layers, network_shape, settings_of, vlm_json
from vla_policies.smolvla.config import NetworkShape, tiny_config


def test_the_experts_mlp_is_the_published_one() -> None:
    # 4 x 480 = 1920 and 4 x 320 = 1280, up to the next multiples of 256.
    assert (expert_mlp(720), expert_mlp(480), expert_mlp(36)) == (2048, 1280, 256)


@pytest.mark.parametrize(
    ("settings", "depth", "expert_depth", "joint"),
    [
        ({}, 6, 6, (0, 2, 4)),
        ({"self_attn_every_n_layers": 3}, 6, 6, (0, 3)),
        ({"self_attn_every_n_layers": 0}, 4, 4, ()),
        ({"self_attn_every_n_layers": -1}, 4, 2, ()),
        ({"self_attn_every_n_layers": 4}, 4, 2, (0,)),
        ({"attention_mode": "self_attn"}, 2, 2, (0, 1)),
    ],
)
def test_the_pattern_of_layers(settings: dict, depth: int, expert_depth: int, joint: tuple[int, ...]) -> None:
    assert joint_layers({**SETTINGS, **settings}, depth, expert_depth, "here") == joint


def test_a_pattern_that_runs_nowhere_is_named() -> None:
    with pytest.raises(BadValue, match="with 2 expert layers on 4, self_attn_every_n_layers must be <= 0 or >= 4"):
        joint_layers(SETTINGS, 4, 2, "here")


@pytest.mark.parametrize("shape", [NetworkShape(), tiny_config().network])
def test_settings_that_are_written_give_the_shape_again(shape: NetworkShape, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(vlm_json(shape)))
    values = {**SETTINGS, **settings_of(shape), "chunk_size": shape.horizon}
    assert network_shape(values, (tmp_path / "config.json", tmp_path), "here") == shape


def test_a_vision_language_model_with_wrong_settings_is_named(tmp_path: Path) -> None:
    for text in ({"hidden_size": "wide"}, {"num_attention_heads": 0}, [3]):
        (tmp_path / "config.json").write_text(json.dumps({"text_config": text}))
        with pytest.raises(BadValue, match="is no config of a SmolVLM"):
            network_shape(SETTINGS, (tmp_path / "config.json", tmp_path), "here")
