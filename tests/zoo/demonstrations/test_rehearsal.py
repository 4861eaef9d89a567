"""What an expert does not solve is not drawn, and what it solves is the same as without a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from vla_gym import find_benchmark, make_vec
from vla_gym.errors import VLAZooError
from vla_gym.specs import StartState
from zoo.demonstrations.recorder import Attempt, Interrupted, all_attempts, demonstrate
from zoo.demonstrations.rehearsal import MOST_BLOCKS, Rehearsal
from zoo.experts.base import expert_class


@dataclass(frozen=True)
class Episode:
    trial: int
    success: bool
    drawn: bool


@dataclass
class Envs:
    drawn: bool
    num_envs: int = 4
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class Theatre:
    """Start states of these trials are solved; `played` says which are played, and whether they are drawn."""

    solved: frozenset[int]
    played: list[tuple[bool, list[int]]] = field(default_factory=list)
    fails_after: int | None = None
    blind: Envs = field(default_factory=lambda: Envs(drawn=False))

    def __post_init__(self) -> None:
        self.envs = Envs(drawn=True)
        self.rehearsal = Rehearsal(self.envs, lambda: self.blind, self.play)  # type: ignore[arg-type, return-value]

    def play(self, envs: Any, attempts: Sequence[Attempt]) -> Any:
        trials = [start.trial_id for start, _ in attempts]
        if self.fails_after is not None and len(self.played) >= self.fails_after:
            raise Interrupted(VLAZooError("a worker died"), [])
        self.played.append((envs.drawn, trials))
        return [Episode(trial, trial in self.solved, envs.drawn) for trial in trials]

    def record(self, first: int, wanted: int = 100, last: int = 1000) -> Sequence[Any]:
        attempts = [(StartState(task_id=0, trial_id=trial), 0) for trial in range(first, last)]
        return self.rehearsal.record(attempts, wanted)


def test_all_are_drawn_while_most_are_solved() -> None:
    theatre = Theatre(frozenset(range(100)) - {1, 5})
    assert [one.trial for one in theatre.record(0)] == [0, 1, 2, 3]
    # One of four has failed, no more than a quarter.
    theatre.record(4)
    theatre.rehearsal.close()
    assert theatre.played == [(True, [0, 1, 2, 3]), (True, [4, 5, 6, 7])]
    assert (theatre.envs.closed, theatre.blind.closed) == (1, 0)


def test_only_what_was_solved_is_drawn_once_many_fail() -> None:
    theatre = Theatre(frozenset({0, 1, 6, 11, 12, 13, 14}))
    theatre.record(0)
    episodes = theatre.record(4)
    # Blocks of four are rehearsed until four are solved; what comes after the fourth is left for the next time.
    assert theatre.played[1:] == [
        (False, [4, 5, 6, 7]),
        (False, [8, 9, 10, 11]),
        (False, [12, 13, 14, 15]),
        (True, [6, 11, 12, 13]),
    ]
    assert [one.trial for one in episodes] == list(range(4, 14))
    assert [one.trial for one in episodes if one.success] == [one.trial for one in episodes if one.drawn]
    assert [one.trial for one in episodes if one.drawn] == [6, 11, 12, 13]
    theatre.rehearsal.close()
    assert (theatre.envs.closed, theatre.blind.closed) == (1, 1)


def test_no_more_are_drawn_than_are_wanted() -> None:
    theatre = Theatre(frozenset({5, 6}))
    theatre.record(0)
    assert [one.trial for one in theatre.record(4, wanted=1)] == [4, 5]
    assert theatre.played[1:] == [(False, [4, 5, 6, 7]), (True, [5])]


def test_a_rehearsal_ends_though_nothing_is_solved() -> None:
    theatre = Theatre(frozenset())
    theatre.record(0)
    assert len(theatre.record(4)) == MOST_BLOCKS * 4
    assert [one.drawn for one in theatre.record(997)] == [False] * 3
    assert all(not drawn for drawn, _ in theatre.played[1:])


@pytest.mark.parametrize("fails_after", [2, 4])
def test_what_is_not_drawn_is_not_kept_when_a_simulator_fails(fails_after: int) -> None:
    theatre = Theatre(frozenset({6, 11, 12, 13}), fails_after=fails_after)
    theatre.record(0)
    with pytest.raises(VLAZooError, match="a worker died") as raised:
        theatre.record(4)
    assert not isinstance(raised.value, Interrupted)


@pytest.mark.sim
def test_a_rehearsed_episode_is_the_one_that_is_drawn() -> None:
    pytest.importorskip("metaworld")
    benchmark = find_benchmark("MetaWorld/door-lock", render_quality="fast", max_episode_steps=62)
    rules = {"chunk": 1, "privileged": True, "autoreset_mode": "disabled", "num_workers": 1, "image_size": 32}

    def play(envs: Any, attempts: Sequence[Attempt]) -> Any:
        return demonstrate(envs, expert_class(benchmark), attempts, noise=0.1, seed=3)

    def opened(cameras: tuple[str, ...]) -> Any:
        return make_vec(replace(benchmark, cameras=cameras), 4, **rules)  # type: ignore[arg-type]

    envs = opened(benchmark.cameras)
    attempts = all_attempts(benchmark.tasks, 1)[:8]
    plain = [one for begin in (0, 4) for one in play(envs, attempts[begin : begin + 4])]
    rehearsal = Rehearsal(envs, lambda: opened(()), play)
    found: list[Any] = []
    while len(found) < 8:
        found += rehearsal.record(attempts[len(found) :], 4)
    rehearsal.close()

    assert [one.success for one in found] == [one.success for one in plain]
    undrawn = [one for one in found if not one.images]
    assert undrawn
    assert not any(one.success for one in undrawn)
    for one, same in zip(found, plain, strict=True):
        assert one.start_state == same.start_state
        np.testing.assert_array_equal(one.action_TA, same.action_TA)
        if one.images:
            np.testing.assert_array_equal(one.images["image"], same.images["image"])
