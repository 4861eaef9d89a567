"""Values are checked against annotations; a wrong one is one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo.config.run_config import check_settings
from zoo.config.settings import build_schedule, check_value


def test_a_list_of_texts_may_be_empty() -> None:
    assert check_value(Sequence[str], [], "tasks") == []
    assert check_value(Sequence[str], ("a", "b"), "tasks") == ["a", "b"]
    for wrong in ("a", ["a", 3]):
        with pytest.raises(BadValue, match="tasks must be a list of texts, got"):
            check_value(Sequence[str], wrong, "tasks")


def test_a_pair_is_two_numbers() -> None:
    assert check_settings("grpo", {"score_bounds": [0.1, "9e-1"]}, "x") == {"score_bounds": [0.1, 0.9]}
    with pytest.raises(ValueError, match="two numbers"):
        check_settings("grpo", {"score_bounds": 0.1}, "x")


@pytest.mark.parametrize(
    ("algo", "values", "meant"),
    [
        ("ppo", {"lr": 3}, "learning_rate"),
        ("ppo", {"n_envs": 3}, "num_envs"),
        ("ppo", {"lambda": 0.9}, "gae_lambda"),
        ("ppo", {"policy_kwargs": {"critic_lr": 3}}, "value_lr"),
        ("grpo", {"num_generations": 3}, "group_size"),
    ],
)
def test_what_others_call_a_setting_is_understood_as_a_hint(algo: str, values: dict[str, Any], meant: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{meant}'\\?( Known|$)"):
        check_settings(algo, values, "x")


def test_an_option_of_a_benchmark_is_shown_its_place() -> None:
    # `make_vec` and `gymnasium.make` take it as it is.
    with pytest.raises(UnknownName, match=r"Did you mean 'env_kwargs:\{render_quality: \.\.\.\}'\?"):
        check_settings("ppo", {"render_quality": "fast"}, "-params")
    with pytest.raises(UnknownName) as caught:
        check_settings("ppo", {"policy_kwargs": {"render_quality": "fast"}}, "-params")
    assert "env_kwargs" not in str(caught.value)


def test_an_optional_setting_may_be_one_text_or_several() -> None:
    for value in (None, "demos", ["demos", "more"]):
        assert check_settings("ppo", {"bc_dataset": value}, "x") == {"bc_dataset": value}
    with pytest.raises(ValueError, match="bc_dataset must be text or a list of texts, got 3"):
        check_settings("ppo", {"bc_dataset": 3}, "x")


def test_null_is_for_optional_settings_only() -> None:
    assert check_settings("ppo", {"target_kl": None}, "x") == {"target_kl": None}
    with pytest.raises(ValueError, match="must be a number, got None"):
        check_settings("ppo", {"gamma": None}, "x")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma", 1.5, "at most 1"),
        ("learning_rate", -1e-3, "at least 0"),
        ("learning_rate", {"schedule": "linear", "start": -1}, "learning_rate: start must be at least 0"),
        ("learning_rate", {"schedule": "linear"}, "needs 'start'"),
        ("learning_rate", {"schedule": "linear", "strat": 1.0}, "Did you mean 'start'"),
        ("learning_rate", True, "must be a number"),
        (
            "learning_rate",
            "lin_3e-4",
            "a number or a schedule such as {schedule: linear, start: 3.0e-4}, got 'lin_3e-4'",
        ),
        ("policy_kwargs", {"temperatur": 1}, "Did you mean 'temperature'"),
        ("policy_kwargs", {"greedy": "meen"}, "no choice .*greedy.* 'meen'. Known: likeliest, mean.*'mean'"),
        ("on_worker_error", "foo", "Known: raise, restart"),
        ("entropy_level", True, "must be a word"),
        ("policy_kwargs", {"backbone_kwargs": "tiny"}, "must be a mapping"),
        ("policy_kwargs", {"optimizer_kwargs": {"beta": [0.9, 0.99]}}, "Did you mean 'betas'"),
        ("policy_kwargs", {"optimizer_kwargs": {"betas": [0.9, 1.0]}}, "must be below 1, got 1.0"),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_settings("ppo", {name: value}, "x")


def test_a_number_stays_a_number() -> None:
    assert build_schedule(3e-4) == 3e-4


@pytest.mark.parametrize(("kind", "halfway"), [("constant", 0.4), ("linear", 0.25), ("cosine", 0.25)])
def test_schedules_start_and_end_where_they_say(kind: str, halfway: float) -> None:
    mapping = {"schedule": kind, "start": 0.4}
    if kind != "constant":
        mapping["end"] = 0.1
    schedule = build_schedule(mapping)
    assert schedule(1.0) == pytest.approx(0.4)
    assert schedule(0.5) == pytest.approx(halfway)
    assert schedule(0.0) == pytest.approx(0.4 if kind == "constant" else 0.1)


def test_a_cosine_is_flat_at_both_ends() -> None:
    schedule = build_schedule({"schedule": "cosine", "start": 1.0})
    assert schedule(0.75) == pytest.approx(0.853553, abs=1e-6)


def test_schedules_survive_saving(tmp_path: Path) -> None:
    from stable_baselines3 import A2C

    schedule = build_schedule({"schedule": "linear", "start": 1e-3})
    A2C("MlpPolicy", "CartPole-v1", learning_rate=schedule, device="cpu").save(tmp_path / "model")
    assert A2C.load(tmp_path / "model", device="cpu").lr_schedule(0.5) == pytest.approx(5e-4)
