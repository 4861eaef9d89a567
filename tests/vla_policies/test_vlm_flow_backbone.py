from __future__ import annotations

import pytest
import torch

from tests.vla_policies.conftest import FLOW_CONVENTIONS
from vla_gym.errors import UnknownName
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
