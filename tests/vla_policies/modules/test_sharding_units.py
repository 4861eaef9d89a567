"""Which parts of a network are gathered one after another."""

from __future__ import annotations

import pytest
from torch import nn

from vla_policies.footprint import Footprint
from vla_policies.modules.sharding_units import units
from vla_policies.registry import family_class


class Stack(nn.Module):
    """Three blocks, one of which has a list inside, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.ModuleList([nn.Linear(2, 2)] * 2)), nn.Tanh()])
        self.head = nn.Linear(2, 2)


def test_units_are_blocks_and_the_rest() -> None:
    stack = Stack()
    assert units(stack) == [stack.blocks[0], stack.blocks[1], stack]
    # A family that runs parts of a block by hand says so.
    stack.blocks[0].run_in_parts = True
    assert units(stack) == [stack.blocks[1], stack]


def test_a_seven_billion_parameter_policy_sums_a_thirteenth_of_its_gradients_at_once() -> None:
    conventions = family_class("openvla-oft").default_conventions
    network = Footprint("openvla-oft", conventions, {"size": "7b"}).backbone.network
    seen: set[nn.Parameter] = set()
    sizes = []
    for unit in units(network):
        sizes.append(sum(parameter.numel() for parameter in unit.parameters() if parameter not in seen))
        seen.update(unit.parameters())
    # In float32: 28 GiB in one piece, 2.2 where blocks are units; the blocks themselves 0.75.
    assert sum(sizes) * 4 / 2**30 == pytest.approx(28.1, abs=0.1)
    assert max(sizes) * 4 / 2**30 == pytest.approx(2.2, abs=0.1)
