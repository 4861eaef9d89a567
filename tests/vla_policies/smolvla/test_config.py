from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.modules.lora import LoraSettings
from vla_policies.processing.statistics import Statistics
from vla_policies.smolvla.config import Learning, NetworkShape, SmolVLAConfig, tiny_config


def test_json_and_back() -> None:
    config = tiny_config()
    config = replace(
        config,
        preprocessing=replace(config.preprocessing, state=Statistics(mean=(1.0,), std=(2.0,))),
        learning=replace(config.learning, lora=LoraSettings(rank=4, targets=("q_proj",))),
        published={"type": "smolvla", "input_features": {"a": {"shape": [3]}}},
    )
    assert SmolVLAConfig.from_json(json.loads(json.dumps(config.to_json())), "here") == config


def test_single_settings_are_changed_by_name() -> None:
    config = tiny_config().with_options({"lora": {"rank": 8}, "num_steps": 3, "use_statistics": False})
    assert config.learning.lora == LoraSettings(rank=8)
    assert (config.flow.num_steps, config.preprocessing.use_statistics) == (3, False)
    with pytest.raises(UnknownName, match="no option of a SmolVLA checkpoint 'delta_dims'"):
        config.with_options({"delta_dims": 3})


def test_every_expert_layer_reads_its_text_layer() -> None:
    shape = NetworkShape()
    assert shape.text_layer_of == tuple(range(16))
    half = replace(shape, expert=replace(shape.expert, depth=8), joint_layers=())
    assert half.text_layer_of == (0, 2, 4, 6, 8, 10, 12, 14)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"picture_size": 500}, "picture_size must be a multiple of patch_size x pixel_shuffle = 64, got 500"),
        ({"expert": replace(NetworkShape().expert, depth=5)}, "must divide the text model's, got 5 and 16"),
        ({"expert": replace(NetworkShape().expert, head_dim=32)}, r"head_dim must be equal, got 64 \(text\) and 32"),
        ({"expert": replace(NetworkShape().expert, width=721)}, "width must be even, got 721"),
        ({"expert": replace(NetworkShape().expert, depth=0)}, "depth must be above 0, got 0"),
        ({"min_period": -1.0}, "min_period must be above 0, got -1.0"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes: dict, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        replace(NetworkShape(), **changes)


def test_wrong_learning_settings_are_named() -> None:
    with pytest.raises(UnknownName, match="no value_feature of backbone_kwargs 'vlm'"):
        Learning(value_feature="vlm")  # type: ignore[arg-type]
