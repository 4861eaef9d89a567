import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.pi0.config import tiny_config
from vla_policies.vlm_flow_config import FlowLearning


def test_settings_are_changed_where_they_belong() -> None:
    config = tiny_config("pi0").with_options({"num_steps": 7, "cache_features": 1, "delta_dims": 2})
    assert (config.flow.num_steps, config.learning.cache_features, config.preprocessing.delta_dims) == (7, 1, 2)
    with pytest.raises(UnknownName, match="no option of a pi0 checkpoint 'epsilon'"):
        tiny_config("pi0").with_options({"epsilon": 1.0})


def test_prefixes_are_kept_of_a_frozen_vlm_only() -> None:
    with pytest.raises(BadValue, match="cache_features is for a frozen VLM"):
        FlowLearning(cache_features=1.0, train_expert_only=False)
    with pytest.raises(BadValue, match="cache_features must be GiB >= 0"):
        FlowLearning(cache_features=-1.0)


@pytest.mark.parametrize("name", ["value_hidden", "noise_hidden"])
@pytest.mark.parametrize("hidden", [(), (0,), (64, -1)])
def test_heads_have_layers_of_some_width(name: str, hidden: tuple[int, ...]) -> None:
    with pytest.raises(BadValue, match="value_hidden and noise_hidden need at least one number each, all above 0"):
        FlowLearning(**{name: hidden})
