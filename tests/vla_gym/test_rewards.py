from __future__ import annotations

import pytest

from vla_gym.specs import RewardRule


@pytest.mark.parametrize(
    ("kind", "paid"),
    [
        ("sparse", [0.0, 5.0, 5.0, 0.0]),
        ("differenced", [0.0, 5.0, 0.0, -5.0]),
        ("step_penalty", [-1.0, 4.0, 4.0, -1.0]),
    ],
)
def test_each_kind_on_rewards_0_1_1_0(kind: str, paid: list[float]) -> None:
    rule = RewardRule(kind=kind, scale=5.0)  # type: ignore[arg-type]
    assert [rule.pay(now, before) for before, now in [(0, 0), (0, 1), (1, 1), (1, 0)]] == paid
