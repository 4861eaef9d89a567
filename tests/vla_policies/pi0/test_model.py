from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vla_policies.actions.sampling import Sampling
from vla_policies.pi0.model import Pi0Backbone

MakeFlow = Callable[..., Pi0Backbone]
Obs = dict[str, Tensor]
FAMILIES = ("pi0", "pi05")


def act(backbone: Pi0Backbone, obs: Obs, *, deterministic: bool = False):
    torch.manual_seed(2)
    with torch.no_grad():
        return backbone.act(backbone.prepare(obs), Sampling(), deterministic=deterministic)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_expert_is_trained(make_flow: MakeFlow, obs: Obs, family: str) -> None:
    backbone = make_flow(family)
    result = backbone.evaluate(backbone.prepare(obs), act(backbone, obs).record, Sampling())
    (result.logprob_BKA.sum() + result.value_B.sum()).backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad == (not name.startswith("network.vlm.")), name
        assert (parameter.grad is not None) == parameter.requires_grad, name


@pytest.mark.parametrize("feature", ["expert", "prefix"])
@pytest.mark.parametrize("detach", [True, False])
def test_the_critics_gradient_stops_where_asked(make_flow: MakeFlow, obs: Obs, feature: str, detach: bool) -> None:
    backbone = make_flow("pi0", value_feature=feature, detach_value=detach, train_expert_only=False)
    backbone.value(backbone.prepare(obs)).sum().backward()
    reached = {
        name.split(".")[1] for name, p in backbone.named_parameters() if p.grad is not None and "network" in name
    }
    assert backbone.value_head.mlp[0].weight.grad is not None
    assert ("vlm" in reached) == (not detach)
    assert ("expert" in reached) == (not detach and feature == "expert")
