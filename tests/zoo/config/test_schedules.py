"""Schedules are called with the remaining progress, 1 to 0."""

from __future__ import annotations

import pytest

from zoo.config.schedules import build_schedule


def test_a_number_stays_a_number():
    assert build_schedule(3e-4) == 3e-4


@pytest.mark.parametrize(("kind", "halfway"), [("constant", 0.4), ("linear", 0.25), ("cosine", 0.25)])
def test_schedules_start_and_end_where_they_say(kind: str, halfway: float):
    mapping = {"schedule": kind, "start": 0.4}
    if kind != "constant":
        mapping["end"] = 0.1
    schedule = build_schedule(mapping)
    assert schedule(1.0) == pytest.approx(0.4)
    assert schedule(0.5) == pytest.approx(halfway)
    assert schedule(0.0) == pytest.approx(0.4 if kind == "constant" else 0.1)


def test_a_cosine_is_flat_at_both_ends():
    schedule = build_schedule({"schedule": "cosine", "start": 1.0})
    assert schedule(0.75) == pytest.approx(0.853553, abs=1e-6)


def test_schedules_survive_saving(tmp_path):
    from stable_baselines3 import A2C

    schedule = build_schedule({"schedule": "linear", "start": 1e-3})
    A2C("MlpPolicy", "CartPole-v1", learning_rate=schedule, device="cpu").save(tmp_path / "model")
    assert A2C.load(tmp_path / "model", device="cpu").lr_schedule(0.5) == pytest.approx(5e-4)
