from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.vla_policies.conftest import FLOW_CONVENTIONS
from vla_gym.errors import UnknownName
from vla_policies.actions.sampling import Sampling
from vla_policies.checkpoint_io.json_records import to_json
from vla_policies.registry import family_class
from vla_policies.vlm_flow.backbone import VLMFlowBackbone

families = pytest.mark.parametrize("name", ["pi0", "pi05", "smolvla"])


def family_of(name: str) -> type[VLMFlowBackbone]:
    found = family_class(name)
    assert issubclass(found, VLMFlowBackbone)
    return found


@families
def test_the_plan_is_of_the_published_sizes_with_hashed_words(name: str) -> None:
    family = family_of(name)
    planned = family.planned_options({"num_steps": 4, "cache_features": 1.0, "horizon": 20, "cameras": ["image"]})
    assert (planned["flow"]["num_steps"], planned["cameras"]) == (4, ["image"])
    assert (planned["network"]["horizon"], planned["preprocessing"]["tokenizer"]) == (20, "words")
    full = to_json(family.config_of_size("full", 7))
    assert planned["network"] == {**full["network"], "horizon": 20}
    assert planned["learning"] == {**full["learning"], "cache_features": 1.0}
    assert family.planned_options({"size": "tiny", "delta_dims": 3}) == {"size": "tiny"}


@families
def test_options_say_whether_weights_are_fresh(name: str) -> None:
    family = family_of(name)
    assert not family.wants_fresh({"num_steps": 4})
    assert family.wants_fresh({"size": "tiny"})
    with pytest.raises(UnknownName, match=f"no size of {name} 'huge'"):
        family.fresh(FLOW_CONVENTIONS, {"size": "huge"})
    backbone = family.fresh(FLOW_CONVENTIONS, {"size": "tiny"})
    with torch.device("meta"):
        again = family.fresh(FLOW_CONVENTIONS, backbone.config_json())
    assert again.config == backbone.config
    assert [x.shape for x in again.parameters()] == [x.shape for x in backbone.parameters()]


@pytest.mark.parametrize(
    ("name", "options", "trained", "fixed"),
    [
        ("pi0", {}, "network.expert", "network.vlm"),
        ("pi05", {}, "network.expert", "network.vlm"),
        ("smolvla", {"train_expert_only": True}, "lm_expert.layers.1.self_attn.k_proj", "text_model.layers.0"),
        ("smolvla", {"train_expert_only": True}, "state_proj", "vision_model"),
        ("smolvla", {"train_expert_only": True, "train_state_proj": False}, "action_in_proj", "state_proj"),
        ("smolvla", {}, "vision_model.embeddings.patch_embedding", "lm_head"),
        ("smolvla", {"freeze_vision_encoder": True}, "text_model.layers.0", "vision_model"),
    ],
)
def test_what_is_trained_gets_a_gradient_and_nothing_else(
    make_flow: Callable[..., VLMFlowBackbone],
    obs: dict[str, Tensor],
    name: str,
    options: dict[str, Any],
    trained: str,
    fixed: str,
) -> None:
    backbone = make_flow(name, recompute_activations=True, num_steps=3, **options)
    inputs = backbone.prepare(obs)
    with torch.no_grad():
        record = backbone.act(inputs, Sampling(), deterministic=False).record
    # SmolVLA denoises the actions that are executed alone.
    assert record["chain"].shape[:3] == (3, 4, 4 if name == "smolvla" else backbone.horizon)
    result = backbone.evaluate(inputs, record, Sampling())
    (result.logprob_BKA.sum() + result.value_B.sum()).backward()
    for key, parameter in backbone.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
        assert parameter.requires_grad or trained not in key, key
        assert not parameter.requires_grad or fixed not in key, key


@pytest.mark.parametrize("feature", ["expert", "prefix"])
@pytest.mark.parametrize("detach", [True, False])
def test_the_critics_gradient_stops_where_asked(
    make_flow: Callable[..., VLMFlowBackbone], obs: dict[str, Tensor], feature: str, detach: bool
) -> None:
    backbone = make_flow("pi0", value_feature=feature, detach_value=detach, train_expert_only=False)
    backbone.value(backbone.prepare(obs)).sum().backward()
    reached = {key.split(".")[1] for key, p in backbone.named_parameters() if p.grad is not None and "network" in key}
    assert backbone.value_head.mlp[0].weight.grad is not None
    assert ("vlm" in reached) == (not detach)
    assert ("expert" in reached) == (not detach and feature == "expert")
