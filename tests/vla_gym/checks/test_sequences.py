"""Breaches of the contract that only several steps show are caught."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from vla_gym import VLAVectorEnv
from vla_gym.checks import check_vla_env
from vla_gym.specs import StartState
from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.start_states import Schedule


def changed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: Any) -> None:
    """Let `change` alter what a method gives, then check Toy-Reach."""
    original = getattr(owner, name)

    def altered(self: Any, *args: Any, **kwargs: Any) -> Any:
        return change(self, original(self, *args, **kwargs))

    monkeypatch.setattr(owner, name, altered)
    check_vla_env("Toy-Reach", to_the_end=False)


def in_mode(mode: AutoresetMode, change: Any) -> Any:
    """Apply `change(result of step)` in one autoreset mode only."""
    return lambda envs, result: change(result) if envs.autoreset_mode is mode else result


def test_a_terminal_frame_that_is_overwritten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def alias(result: Any) -> Any:
        obs, infos = result[0], result[4]
        for last in infos.get("final_obs", ()):
            last["image"] = obs["image"][0]
        return result

    with pytest.raises(AssertionError, match="final_obs is an array of its own"):
        changed(monkeypatch, VLAVectorEnv, "step", in_mode(AutoresetMode.SAME_STEP, alias))


def test_a_held_slot_that_pays_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def pay(result: Any) -> Any:
        obs, reward_N, *rest = result
        return obs, reward_N + 1.0, *rest

    with pytest.raises(AssertionError, match="a finished slot costs and pays nothing"):
        changed(monkeypatch, VLAVectorEnv, "step", in_mode(AutoresetMode.DISABLED, pay))


def test_a_held_slot_that_stays_solved_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(result: Any) -> Any:
        result[4]["success"][:] = True
        return result

    with pytest.raises(AssertionError, match="solved in its last decision, not in later ones"):
        changed(monkeypatch, VLAVectorEnv, "step", in_mode(AutoresetMode.DISABLED, stay))


def test_a_grid_with_a_hole_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip(schedule: Schedule, start: StartState | None) -> StartState | None:
        hole = StartState(task_id=1, trial_id=0)
        return StartState(task_id=1, trial_id=1) if schedule.kind == "grid" and start == hole else start

    with pytest.raises(AssertionError, match="a grid begins in each start state once"):
        changed(monkeypatch, Schedule, "start_state", skip)


@pytest.mark.parametrize(
    ("key", "promise"),
    [
        ("TimeLimit.truncated", "TimeLimit.truncated on every step"),
        ("is_success", r"has \['is_success'\]"),
        ("terminal_observation", r"has \['terminal_observation'\]"),
    ],
)
def test_a_view_that_tells_sb3_too_little_is_caught(monkeypatch: pytest.MonkeyPatch, key: str, promise: str) -> None:
    def forget(view: SB3VecEnv, result: Any) -> Any:
        for info in result[3]:
            info.pop(key, None)
        return result

    with pytest.raises(AssertionError, match=promise):
        changed(monkeypatch, SB3VecEnv, "step_wait", forget)
