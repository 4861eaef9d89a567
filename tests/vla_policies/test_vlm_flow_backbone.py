import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.pi0.config import tiny_config
from vla_policies.vlm_flow_backbone import FlowLearning, with_options


def test_settings_are_changed_where_they_belong() -> None:
    config = with_options(
        tiny_config("pi0"), {"num_steps": 7, "cache_features": 1, "delta_dims": 2}, ["delta_dims"], "x"
    )
    assert (config.flow.num_steps, config.learning.cache_features, config.preprocessing.delta_dims) == (7, 1, 2)
    with pytest.raises(UnknownName, match="no option of a x checkpoint 'epsilon'"):
        with_options(tiny_config("pi0"), {"epsilon": 1.0}, ["delta_dims"], "x")


def test_prefixes_are_kept_of_a_frozen_vlm_only() -> None:
    with pytest.raises(BadValue, match="cache_features is for a frozen VLM"):
        FlowLearning(cache_features=1.0, train_expert_only=False)
