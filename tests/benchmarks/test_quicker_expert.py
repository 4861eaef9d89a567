"""The quicker expert of door-lock: its three aims by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quicker_expert import press_lock

LOCK = (0.1, 0.7, 0.2)


@pytest.mark.parametrize(
    ("hand", "aim"),
    [
        ((0.0, 0.65, 0.2), (0.0, 0.62, 0.3)),  # beside the lock and low: up, and away
        ((0.0, 0.65, 0.26), (0.08, 0.68, 0.28)),  # high enough: to above it
        ((-0.1, 0.6, 0.2), (0.08, 0.68, 0.28)),  # far enough: likewise
        ((0.08, 0.67, 0.24), (0.03, 0.68, 0.1)),  # above it: down, with the lever
    ],
)
def test_where_the_hand_is_to_go(hand: tuple[float, float, float], aim: tuple[float, float, float]) -> None:
    privileged_P = np.concatenate([hand, [1.0], LOCK, np.zeros(32)])
    found = press_lock(privileged_P)
    np.testing.assert_allclose(found.position_3, aim, atol=1e-12)
    assert found.effort == -1.0
