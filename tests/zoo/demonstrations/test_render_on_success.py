"""What an expert does not solve is not rendered, and what it solves is the same as without a recorder."""

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
from zoo.demonstrations.render_on_success import MOST_BATCHES, RenderOnSuccess
from zoo.experts import expert_class


@dataclass(frozen=True)
class Episode:
    trial: int
    success: bool
    rendered: bool


@dataclass
class Envs:
    rendered: bool
    num_envs: int = 4
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class Recording:
    """Start states of these trials are solved; `played` says which are played, and whether they are rendered."""

    solved: frozenset[int]
    played: list[tuple[bool, list[int]]] = field(default_factory=list)
    fails_after: int | None = None
    without_cameras: Envs = field(default_factory=lambda: Envs(rendered=False))

    def __post_init__(self) -> None:
        self.envs = Envs(rendered=True)
        self.recorder = RenderOnSuccess(self.envs, lambda: self.without_cameras, self.play)  # type: ignore[arg-type, return-value]

    def play(self, envs: Any, attempts: Sequence[Attempt]) -> Any:
        trials = [start.trial_id for start, _ in attempts]
        if self.fails_after is not None and len(self.played) >= self.fails_after:
            raise Interrupted(VLAZooError("a worker died"), [])
        self.played.append((envs.rendered, trials))
        return [Episode(trial, trial in self.solved, envs.rendered) for trial in trials]

    def record(self, first: int, wanted: int = 100, last: int = 1000) -> Sequence[Any]:
        attempts = [(StartState(task_id=0, trial_id=trial), 0) for trial in range(first, last)]
        return self.recorder.record(attempts, wanted)


def test_all_are_rendered_while_most_are_solved() -> None:
    recording = Recording(frozenset(range(100)) - {1, 5})
    assert [episode.trial for episode in recording.record(0)] == [0, 1, 2, 3]
    # One of four has failed, no more than a quarter.
    recording.record(4)
    recording.recorder.close()
    assert recording.played == [(True, [0, 1, 2, 3]), (True, [4, 5, 6, 7])]
    assert (recording.envs.closed, recording.without_cameras.closed) == (1, 0)


def test_only_what_was_solved_is_rendered_once_many_fail() -> None:
    recording = Recording(frozenset({0, 1, 6, 11, 12, 13, 14}))
    recording.record(0)
    episodes = recording.record(4)
    # Batches of four are played until four are solved; the attempts after the fourth are left for the next call.
    assert recording.played[1:] == [
        (False, [4, 5, 6, 7]),
        (False, [8, 9, 10, 11]),
        (False, [12, 13, 14, 15]),
        (True, [6, 11, 12, 13]),
    ]
    assert [episode.trial for episode in episodes] == list(range(4, 14))
    assert [episode.trial for episode in episodes if episode.success] == [
        episode.trial for episode in episodes if episode.rendered
    ]
    assert [episode.trial for episode in episodes if episode.rendered] == [6, 11, 12, 13]
    recording.recorder.close()
    assert (recording.envs.closed, recording.without_cameras.closed) == (1, 1)


def test_no_more_are_rendered_than_are_wanted() -> None:
    recording = Recording(frozenset({5, 6}))
    recording.record(0)
    assert [episode.trial for episode in recording.record(4, wanted=1)] == [4, 5]
    assert recording.played[1:] == [(False, [4, 5, 6, 7]), (True, [5])]


def test_it_ends_though_nothing_is_solved() -> None:
    recording = Recording(frozenset())
    recording.record(0)
    assert len(recording.record(4)) == MOST_BATCHES * 4
    assert [episode.rendered for episode in recording.record(997)] == [False] * 3
    assert all(not rendered for rendered, _ in recording.played[1:])


@pytest.mark.parametrize("fails_after", [2, 4])
def test_what_is_not_rendered_is_not_kept_when_a_simulator_fails(fails_after: int) -> None:
    recording = Recording(frozenset({6, 11, 12, 13}), fails_after=fails_after)
    recording.record(0)
    with pytest.raises(VLAZooError, match="a worker died") as raised:
        recording.record(4)
    assert not isinstance(raised.value, Interrupted)


@pytest.mark.sim
def test_a_solved_episode_is_the_one_that_is_rendered() -> None:
    pytest.importorskip("metaworld")
    benchmark = find_benchmark("MetaWorld/door-lock", render_quality="fast", max_episode_steps=62)
    rules = {"chunk": 1, "privileged": True, "autoreset_mode": "disabled", "num_workers": 1, "image_size": 32}

    def play(envs: Any, attempts: Sequence[Attempt]) -> Any:
        return demonstrate(envs, expert_class(benchmark), attempts, noise=0.1, seed=3)

    def opened(cameras: tuple[str, ...]) -> Any:
        return make_vec(replace(benchmark, cameras=cameras), 4, **rules)  # type: ignore[arg-type]

    envs = opened(benchmark.cameras)
    attempts = all_attempts(benchmark.tasks, 1)[:8]
    plain = [episode for begin in (0, 4) for episode in play(envs, attempts[begin : begin + 4])]
    recorder = RenderOnSuccess(envs, lambda: opened(()), play)
    found: list[Any] = []
    while len(found) < 8:
        found += recorder.record(attempts[len(found) :], 4)
    recorder.close()

    assert [episode.success for episode in found] == [episode.success for episode in plain]
    without_images = [episode for episode in found if not episode.images]
    assert without_images
    assert not any(episode.success for episode in without_images)
    for episode, same in zip(found, plain, strict=True):
        assert episode.start_state == same.start_state
        np.testing.assert_array_equal(episode.action_TA, same.action_TA)
        if episode.images:
            np.testing.assert_array_equal(episode.images["image"], same.images["image"])
