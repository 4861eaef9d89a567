from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue, UnknownName
from vla_gym.registry import find_benchmark
from vla_gym.specs import StartState, Task
from zoo.evaluation.evaluator import EpisodeRecord, Frame, choose_start_states, evaluate, tasks_of


def task(name: str, *, trials: int = 3, suite: str = "suite") -> Task:
    return Task(name=name, instruction=f"do {name}", horizon=10, num_trials=trials, suite=suite)


def episode(task_id: int, trial_id: int, success: bool) -> EpisodeRecord:
    return EpisodeRecord(
        task_id=task_id,
        trial_id=trial_id,
        success_once=success,
        success_at_end=success,
        total_reward=float(success),
        length=4,
        seconds=0.1,
        start_state="00",
    )


class FakeEnvs:
    """Slots whose episode of cell (task, trial) lasts `1 + trial` decisions and succeeds for even tasks."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.cells = [(-1, -1)] * num_envs
        self.left = np.zeros(num_envs, dtype=int)
        self.begun: list[tuple[int, int, int]] = []
        self.loses: set[tuple[int, int]] = set()
        """Cells whose first episode is lost at its end."""
        self.batch_sizes: list[int] = []

    def reset(self, *, options: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        assert options is not None
        for slot in np.flatnonzero(options["reset_mask"]).tolist():
            cell = int(options["task_id"][slot]), int(options["trial_id"][slot])
            self.cells[slot], self.left[slot] = cell, 1 + cell[1]
            self.begun.append((slot, *cell))
        return self._obs(), {"start_state": [f"{a}-{b}" for a, b in self.cells]}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        running = self.left > 0
        self.left -= running
        ended = self.left == 0
        success = np.array([a % 2 == 0 for a, _ in self.cells]) & ended
        length = np.array([1 + b for _, b in self.cells])
        stats = {
            "return": success * 1.0,
            "length": length,
            "success_once": success,
            "success_at_end": success,
            "seconds": np.zeros(self.num_envs),
        }
        # A finished slot is held: its flags stay up.
        lost = np.array([cell in self.loses for cell in self.cells]) & running & ended
        self.loses -= {cell for cell, gone in zip(self.cells, lost) if gone}
        infos = {"success": success & ~lost, "episode": stats, "lost": lost}
        return self._obs(), success * 1.0, ended, np.zeros_like(ended), infos

    def _obs(self) -> dict[str, Any]:
        image = np.zeros((self.num_envs, 2, 2, 3), dtype=np.uint8)
        image[:, 0, 0, 0] = [10 * a + b for a, b in self.cells]
        return {"image": image, "instruction": tuple(f"do {a}" for a, _ in self.cells)}


class FakePolicy:
    def __init__(self, envs: FakeEnvs) -> None:
        self.envs = envs

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        batch = len(observation["image"])
        assert len(observation["instruction"]) == batch
        self.envs.batch_sizes.append(batch)
        return np.zeros((batch, 1, 2), dtype=np.float32), None


def test_fewer_cells_than_tasks_spread_over_the_tasks() -> None:
    cells = choose_start_states([task(str(i)) for i in range(10)], 4)
    assert [(c.task_id, c.trial_id) for c in cells] == [(0, 0), (2, 0), (5, 0), (7, 0)]


def test_more_cells_than_tasks_give_each_task_its_first_trials() -> None:
    cells = choose_start_states([task("a"), task("b", trials=1), task("c")], 6)
    assert [(c.task_id, c.trial_id) for c in cells] == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]


def test_all_cells_are_the_whole_grid_once() -> None:
    cells = choose_start_states([task("a", trials=2), task("b", trials=3)], None)
    assert [(c.task_id, c.trial_id) for c in cells] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("episodes", [0, 7])
def test_a_count_outside_the_grid_is_refused(episodes: int) -> None:
    with pytest.raises(BadValue, match=r"1 \.\. 6"):
        choose_start_states([task("a"), task("b")], episodes)


@pytest.mark.parametrize("num_envs", [1, 2, 3, 5])
def test_every_cell_is_evaluated_once_and_in_order(num_envs: int) -> None:
    cells = [StartState(task_id=a, trial_id=b) for a in range(2) for b in range(3)]
    envs = FakeEnvs(num_envs)
    episodes = evaluate(FakePolicy(envs), envs, cells)
    assert [(e.task_id, e.trial_id) for e in episodes] == [(c.task_id, c.trial_id) for c in cells]
    assert [e.start_state for e in episodes] == [f"{c.task_id}-{c.trial_id}" for c in cells]
    assert [e.success_once for e in episodes] == [True, True, True, False, False, False]
    assert [e.length for e in episodes] == [1, 2, 3, 1, 2, 3]
    assert sorted(begun[1:] for begun in envs.begun) == [(a, b) for a in range(2) for b in range(3)]


def test_the_policy_sees_only_slots_that_still_run() -> None:
    # Slot 0 has cell (0, 0), one decision; slot 1 has cell (0, 2), three.
    envs = FakeEnvs(2)
    evaluate(FakePolicy(envs), envs, [StartState(task_id=0, trial_id=0), StartState(task_id=0, trial_id=2)])
    assert envs.batch_sizes == [2, 1, 1]


def test_frames_show_each_decision_and_the_end() -> None:
    envs = FakeEnvs(1)
    seen: list[tuple[int, int, bool]] = []
    evaluate(
        FakePolicy(envs),
        envs,
        [StartState(task_id=0, trial_id=1), StartState(task_id=1, trial_id=0)],
        on_frame=lambda frame: seen.append((frame.episode, int(frame.image[0, 0, 0]), frame.success)),
    )
    assert seen == [(0, 1, False), (0, 1, False), (0, 1, True), (1, 10, False), (1, 10, False)]


@pytest.mark.parametrize("num_envs", [1, 2, 6])
def test_a_lost_episode_is_run_again(num_envs: int) -> None:
    cells = [StartState(task_id=a, trial_id=b) for a in range(2) for b in range(3)]
    envs = FakeEnvs(num_envs)
    envs.loses = {(0, 1), (1, 2)}
    films: dict[int, int] = {}

    def count(frame: Frame) -> None:
        films[frame.episode] = 1 if frame.first else films[frame.episode] + 1

    episodes = evaluate(FakePolicy(envs), envs, cells, on_frame=count)
    assert [(e.task_id, e.trial_id) for e in episodes] == [(c.task_id, c.trial_id) for c in cells]
    assert [e.success_once for e in episodes] == [True, True, True, False, False, False]
    begun = [begun[1:] for begun in envs.begun]
    assert sorted(begun) == sorted([(a, b) for a in range(2) for b in range(3)] + [(0, 1), (1, 2)])
    # One frame a decision and the last state; what was filmed of a lost episode is dropped.
    assert films == {0: 2, 1: 3, 2: 4, 3: 2, 4: 3, 5: 4}


class FakeNoisePolicy(FakePolicy):
    """Keeps the first random number of every decision."""

    def __init__(self, envs: FakeEnvs) -> None:
        super().__init__(envs)
        self.drawn: list[float] = []

    def predict_with_noise(self, observation: Any, noise: Any, *, deterministic: bool = False) -> np.ndarray:
        batch = len(observation["image"])
        drawn = noise.uniform(batch, 1, device=torch.device("cpu")).numpy()[:, 0]
        self.drawn += zip(observation["image"][:, 0, 0, 0].tolist(), drawn.tolist(), strict=True)
        return np.zeros((batch, 1, 2), dtype=np.float32)


def numbers(num_envs: int, *, rounds: int = 1, seed: int = 0, lost: bool = False) -> dict[int, list[float]]:
    """Start state (10 x task + trial) -> the numbers drawn in its episodes."""
    envs = FakeEnvs(num_envs)
    envs.loses = {(0, 1)} if lost else set()
    policy = FakeNoisePolicy(envs)
    cells = [StartState(task_id=a, trial_id=b) for a in range(2) for b in range(3)]
    evaluate(policy, envs, cells, deterministic=False, rounds=rounds, seed=seed)
    found: dict[int, list[float]] = {}
    for cell, number in policy.drawn:
        found.setdefault(cell, []).append(number)
    return found


def test_every_start_state_is_played_again_in_every_round() -> None:
    cells = [StartState(task_id=a, trial_id=b) for a in range(2) for b in range(2)]
    envs = FakeEnvs(8)
    episodes = evaluate(FakePolicy(envs), envs, cells, rounds=2)
    assert [(e.task_id, e.trial_id, e.round) for e in episodes] == [
        (a, b, number) for a in range(2) for b in range(2) for number in range(2)
    ]
    assert [e.start_state for e in episodes[:3]] == ["0-0", "0-0", "0-1"]


def test_an_episode_s_noise_does_not_depend_on_its_neighbours() -> None:
    alone = numbers(1, rounds=2)
    assert {cell: len(drawn) for cell, drawn in alone.items()} == {0: 2, 1: 4, 2: 6, 10: 2, 11: 4, 12: 6}
    for num_envs in (2, 5, 12):
        assert {cell: sorted(drawn) for cell, drawn in numbers(num_envs, rounds=2).items()} == {
            cell: sorted(drawn) for cell, drawn in alone.items()
        }
    # A second round adds to the first; another seed changes every number.
    first = numbers(3)
    assert all(first[cell] == alone[cell][: len(first[cell])] for cell in first)
    every = [number for drawn in (*alone.values(), *numbers(1, rounds=2, seed=1).values()) for number in drawn]
    assert len(set(every)) == len(every) == 48


def test_an_episode_that_is_run_again_draws_the_same_numbers() -> None:
    first, again = numbers(2)[1], numbers(2, lost=True)[1]
    assert again == [*first, *first]


def test_the_tasks_of_some_environments_are_chosen_in_the_benchmark_s_order() -> None:
    tasks = find_benchmark("Toy-Reach").tasks
    assert tasks_of([], tasks) == [0, 1, 2]
    assert tasks_of(["Toy-Reach/2", "Toy-Reach/0"], tasks) == [0, 2]
    with pytest.raises(BadValue, match="none of its tasks"):
        tasks_of(["Toy-Reach/0", "MetaWorld/reach"], tasks)
    with pytest.raises(UnknownName, match="Did you mean"):
        tasks_of(["Toy-Rech"], tasks)
