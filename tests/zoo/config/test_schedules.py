"""Schedules are called with the remaining progress, 1 to 0."""

from __future__ import annotations

import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo.config.schedules import build_schedule


def test_a_number_stays_a_number():
    assert build_schedule(3e-4, "rate") == 3e-4


@pytest.mark.parametrize(("kind", "halfway"), [("constant", 0.4), ("linear", 0.25), ("cosine", 0.25)])
def test_schedules_start_and_end_where_they_say(kind: str, halfway: float):
    mapping = {"schedule": kind, "start": 0.4}
    if kind != "constant":
        mapping["end"] = 0.1
    schedule = build_schedule(mapping, "rate")
    assert schedule(1.0) == pytest.approx(0.4)
    assert schedule(0.5) == pytest.approx(halfway)
    assert schedule(0.0) == pytest.approx(0.4 if kind == "constant" else 0.1)


def test_a_cosine_is_flat_at_both_ends():
    schedule = build_schedule({"schedule": "cosine", "start": 1.0}, "rate")
    assert schedule(0.75) == pytest.approx(0.853553, abs=1e-6)


def test_a_misspelt_schedule_names_the_nearest():
    with pytest.raises(UnknownName, match="linear"):
        build_schedule({"schedule": "liner", "start": 1.0}, "learning_rate")


def test_an_unknown_key_is_refused():
    with pytest.raises(UnknownName, match="start"):
        build_schedule({"schedule": "linear", "strat": 1.0}, "rate")


@pytest.mark.parametrize(
    "wrong", ["fast", True, float("nan"), {"schedule": "linear"}, {"schedule": "linear", "start": "x"}]
)
def test_what_is_no_number_is_refused(wrong: object):
    with pytest.raises(BadValue):
        build_schedule(wrong, "rate")  # type: ignore[arg-type]


def test_schedules_survive_saving(tmp_path):
    from stable_baselines3 import A2C

    schedule = build_schedule({"schedule": "linear", "start": 1e-3}, "rate")
    A2C("MlpPolicy", "CartPole-v1", learning_rate=schedule, device="cpu").save(tmp_path / "model")
    assert A2C.load(tmp_path / "model", device="cpu").lr_schedule(0.5) == pytest.approx(5e-4)
