"""Groups are checked by the hash of their start state, and shown on one line."""

from __future__ import annotations

import pytest
import torch

from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.group_collector import GroupOutcome, all_outcomes, check_shared_start, group_lines


def test_one_line_shows_every_groups_start_state_and_successes():
    own = [GroupOutcome("0123456789abcdef", 3, 8), GroupOutcome("fedcba9876543210", 0, 8)]
    outcomes = all_outcomes(own, torch.tensor([True, False]), ProcessGroup())
    assert group_lines(outcomes) == ["groups: 01234567 3/8 | fedcba98 0/8 dead"]


def test_no_groups_no_line():
    assert group_lines([]) == []


def test_groups_that_began_in_different_states_are_an_error():
    check_shared_start(["a", "a", "b", "b"], 2)
    with pytest.raises(AssertionError, match=r"group 1 \(slots 2 .. 3\) began in 2 different states: b, c"):
        check_shared_start(["a", "a", "b", "c"], 2)
