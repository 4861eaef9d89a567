import json

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.actions.flow import FlowSettings
from vla_policies.pi0.config import (
    GemmaShape,
    NetworkShape,
    Pi0Config,
    Preprocessing,
    VisionShape,
    tiny_config,
)
from vla_policies.processing.statistics import Statistics
from vla_policies.vlm_flow_config import FlowLearning


def test_json_and_back() -> None:
    config = Pi0Config(
        network=tiny_config("pi0").network,
        preprocessing=Preprocessing(state=Statistics(mean=(1.0,), std=(2.0,)), delta_dims=1),
        learning=FlowLearning(value_hidden=(8, 4)),
        flow=FlowSettings(noise_std=(0.1, 0.2)),
    )
    assert Pi0Config.from_json(json.loads(json.dumps(config.to_json())), "here") == config


def test_single_settings_are_changed_by_name() -> None:
    config = tiny_config("pi05").with_options(
        {"num_steps": 5, "noise_std": [0.1, 0.3], "delta_dims": 6, "vlm_dtype": "bfloat16"}
    )
    assert (config.flow.num_steps, config.flow.noise_std) == (5, (0.1, 0.3))
    assert (config.preprocessing.delta_dims, config.learning.vlm_dtype) == (6, "bfloat16")
    with pytest.raises(UnknownName, match="Did you mean 'noise_level'"):
        config.with_options({"noise_levle": 0.3})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_state": "no"}, "no prompt_state of backbone_kwargs 'no'.*Did you mean 'none'"),
        ({"resize": "PIL"}, "no resize of backbone_kwargs 'PIL'.*Did you mean 'pil'"),
        ({"num_steps": "5"}, "num_steps of backbone_kwargs must be an integer, got '5'"),
        ({"noise_std": 0.1}, "noise_std of backbone_kwargs must be a list of 2 numbers, got 0.1"),
        ({"train_expert_only": "false"}, "train_expert_only of backbone_kwargs must be true or false"),
        ({"value_hidden": 512}, "value_hidden of backbone_kwargs must be a list of integers, got 512"),
    ],
)
def test_option_values_are_checked(options: dict, message: str) -> None:
    with pytest.raises((BadValue, UnknownName), match=message):
        tiny_config("pi0").with_options(options)


def test_wrong_files_are_named() -> None:
    values = tiny_config("pi0").to_json()
    with pytest.raises(UnknownName, match="no setting in here 'flw'"):
        Pi0Config.from_json({**values, "flw": {}}, "here")
    with pytest.raises(BadValue, match="here lacks 'flow'"):
        Pi0Config.from_json({key: value for key, value in values.items() if key != "flow"}, "here")
    values["network"]["vision"]["patch"] = 14
    with pytest.raises(UnknownName, match="no setting in vision of network of here 'patch'"):
        Pi0Config.from_json(values, "here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_feature": "vlm"}, "no value_feature of backbone_kwargs 'vlm'"),
        ({"vlm_dtype": "float16"}, "no vlm_dtype 'float16'"),
        ({"vlm_dtype": "bfloat16", "train_expert_only": False}, "for a frozen one"),
        ({"value_hidden": ()}, "at least one number"),
    ],
)
def test_wrong_learning_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises((BadValue, UnknownName), match=message):
        FlowLearning(**settings)


def test_sizes_that_no_network_has_are_named() -> None:
    with pytest.raises(BadValue, match=r"min_period must be above 0, got -1"):
        NetworkShape(min_period=-1.0)
    with pytest.raises(BadValue, match=r"num_attention_heads must be above 0, got 0"):
        NetworkShape(vision=VisionShape(num_attention_heads=0))
    with pytest.raises(BadValue, match=r"at least 1 token, got -1"):
        Preprocessing(max_tokens=-1)


def test_streams_that_cannot_share_attention_are_named() -> None:
    with pytest.raises(BadValue, match=r"head_dim must be equal, got 256 \(vlm\) and 128 \(expert\)"):
        NetworkShape(expert=GemmaShape(width=64, mlp_dim=64, depth=18, head_dim=128))
