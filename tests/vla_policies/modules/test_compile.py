"""`torch.compile`: captured whole, the same numbers; what the compiler itself makes is tested once, slowly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.vla_policies.conftest import tiny_policy, two_observations
from vla_policies import VLAPolicy
from vla_policies.modules.training import compile_blocks

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.processes]
"""The compiler warns of itself."""

LORA = {"lora": {"rank": 2}}
THOROUGH = pytest.mark.thorough
FAMILIES = [
    pytest.param("nano", {}, id="nano"),
    pytest.param("nano-flow", {}, id="nano-flow", marks=THOROUGH),
    pytest.param("openvla", LORA, id="openvla", marks=THOROUGH),
    pytest.param("openvla-oft", LORA, id="openvla-oft", marks=THOROUGH),
    pytest.param("pi0", {}, id="pi0"),
    pytest.param("pi05", {}, id="pi05", marks=THOROUGH),
    pytest.param("smolvla", {}, id="smolvla", marks=THOROUGH),
]


def check_equal(plain: VLAPolicy, compiled: VLAPolicy) -> None:
    """Decisions, scores and gradients agree."""
    obs, samples = two_observations(), []
    for policy in (plain, compiled):
        torch.manual_seed(1)
        samples.append(policy.act(obs))
    torch.testing.assert_close(samples[0].action_BKA, samples[1].action_BKA, rtol=0.0, atol=1e-5)
    for policy in (plain, compiled):
        result = policy.evaluate(obs, samples[0].record)
        torch.testing.assert_close(result.logprob_BKA, samples[0].logprob_BKA, rtol=0.0, atol=1e-4)
        result.logprob_BKA.sum().backward()
    for parameter, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None)
        if parameter.grad is not None and other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_blocks_are_captured_and_give_the_same_numbers(family: str, options: dict[str, Any]) -> None:
    plain, compiled = tiny_policy(family, options), tiny_policy(family, options)
    assert compile_blocks(compiled.backbone, backend="eager") >= 2
    torch._dynamo.utils.counters.clear()
    check_equal(plain, compiled)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("family", "options"), [("openvla-oft", LORA), ("smolvla", {})])
def test_the_compiler_gives_the_same_numbers(family: str, options: dict[str, Any]) -> None:
    check_equal(tiny_policy(family, options), tiny_policy(family, options, compile=True))
