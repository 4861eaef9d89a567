"""Success of a policy on fixed start states: which cells, the episode loop, and the counts with intervals."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.specs import StartState, Task

_Z95 = statistics.NormalDist().inv_cdf(0.975)


class Predictor(Protocol):
    """The part of a Stable-Baselines3 policy that evaluation needs."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Actions `[B, K, A]` for a batch of observations."""


class EvaluationEnv(Protocol):
    """The part of `VLAVectorEnv` (autoreset DISABLED) that evaluation needs."""

    num_envs: int

    def reset(
        self, *, options: Mapping[str, Any] | None = None
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Begin the episodes of `options`: reset_mask, task_id and trial_id."""

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, Any]]:
        """One decision."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One evaluated episode."""

    task_id: int
    """Index into the benchmark's tasks."""
    trial_id: int
    """Start state of that task."""
    success_once: bool
    """Solved at any step; the headline."""
    success_at_end: bool
    """Solved in the last state."""
    total_reward: float
    """Sum of rewards."""
    length: int
    """Simulator steps."""
    seconds: float
    """Wall-clock seconds."""
    start_state: str
    """Fingerprint of the simulator state it began in."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What one slot showed before one decision; the last one of an episode is the state it ended in."""

    slot: int
    """Slot index."""
    episode: int
    """Index of the episode's cell in the order asked for."""
    image: np.ndarray
    """Main camera, uint8 `[H, W, 3]`."""
    success: bool
    """Solved so far?"""
    first: bool = False
    """Does the episode begin here? A cell that was lost begins once more."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """k successes of n, with the Wilson 95 % interval."""

    label: str
    """Task or suite."""
    successes: int
    """k."""
    episodes: int
    """n."""

    @property
    def mean(self) -> float:
        """k / n."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson score interval, 95 %."""
        return wilson_interval(self.successes, self.episodes)


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """95 % score interval of a binomial rate (Wilson 1927): honest at 0 and n, where k/n +- 2 s.e. is not."""
    if not 0 <= successes <= episodes or episodes < 1:
        raise ValueError(f"need 0 <= successes <= episodes and episodes >= 1, got {successes} of {episodes}")
    z2 = _Z95**2
    rate = successes / episodes
    centre = (rate + z2 / (2 * episodes)) / (1 + z2 / episodes)
    spread = rate * (1 - rate) / episodes + z2 / (4 * episodes**2)
    half = _Z95 / (1 + z2 / episodes) * math.sqrt(spread)
    # Exactly 0 and 1 at the ends, where rounding would leave 1e-17.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == episodes else min(1.0, centre + half)
    return low, high


def choose_cells(tasks: Sequence[Task], episodes: int | None) -> list[StartState]:
    """Which (task, trial) cells to evaluate, task-major; the same for the same arguments, always.

    None takes the whole grid. Fewer episodes than tasks take trial 0 of tasks spread evenly; more give
    each task its first trials, tasks earlier in the benchmark getting one more when it does not divide.
    """
    grid = sum(task.num_trials for task in tasks)
    if episodes is None:
        episodes = grid
    if not 1 <= episodes <= grid:
        raise BadValue(
            f"eval_episodes must lie in 1 .. {grid} (all start states of {len(tasks)} tasks), got {episodes}"
        )
    if episodes < len(tasks):
        chosen = (index * len(tasks) // episodes for index in range(episodes))
        return [StartState(task_id=task_id, trial_id=0) for task_id in chosen]
    take = [0] * len(tasks)
    left = episodes
    while left:
        for task_id, task in enumerate(tasks):
            if left and take[task_id] < task.num_trials:
                take[task_id] += 1
                left -= 1
    return [StartState(task_id=i, trial_id=k) for i, count in enumerate(take) for k in range(count)]


def evaluate(
    policy: Predictor,
    envs: EvaluationEnv,
    cells: Sequence[StartState],
    *,
    deterministic: bool = True,
    on_frame: Callable[[Frame], None] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """One episode from each cell; the result is in the order of `cells`, whoever finished first.

    Slots take contiguous blocks of cells (few task switches); a slot that is through costs nothing.
    `envs` must have autoreset DISABLED and at most as many slots as there are cells. An episode lost with its
    worker (`on_worker_error="restart"`) is run again, so that no cell is skipped; `envs` gives up by itself.
    """
    if envs.num_envs > len(cells):
        raise ValueError(f"{envs.num_envs} slots for {len(cells)} cells")
    blocks = _blocks(len(cells), envs.num_envs)
    current = [block.popleft() for block in blocks]
    obs, infos = envs.reset(options=_reset_options(cells, current, np.ones(envs.num_envs, dtype=bool)))
    starts = list(infos["start_state"])
    solved_N = np.zeros(envs.num_envs, dtype=bool)
    live_N = np.ones(envs.num_envs, dtype=bool)
    done: dict[int, Episode] = {}
    begins_N = live_N.copy()
    actions: np.ndarray | None = None
    while True:
        _show(on_frame, obs, current, solved_N, live_N, begins_N)
        begins_N[:] = False
        chosen, _ = policy.predict(observation_rows(obs, np.flatnonzero(live_N)), deterministic=deterministic)
        if actions is None:
            actions = np.zeros((envs.num_envs, *chosen.shape[1:]), dtype=np.float32)
        actions[live_N] = chosen
        obs, _, terminated_N, truncated_N, infos = envs.step(actions)
        solved_N |= infos["success"].astype(bool)
        ended_N = (terminated_N | truncated_N) & live_N
        if not ended_N.any():
            continue
        lost_N = ended_N & infos["lost"]
        _show(on_frame, obs, current, solved_N, ended_N & ~lost_N, begins_N)
        for slot in np.flatnonzero(ended_N & ~lost_N).tolist():
            episode = _episode(cells[current[slot]], infos["episode"], slot, starts[slot])
            done[current[slot]] = episode
            if on_episode is not None:
                on_episode(episode)
        again_N = lost_N | (ended_N & np.array([bool(block) for block in blocks]))
        live_N &= ~ended_N | again_N
        if not live_N.any():
            return [done[index] for index in range(len(cells))]
        if again_N.any():
            for slot in np.flatnonzero(again_N & ~lost_N).tolist():
                current[slot] = blocks[slot].popleft()
            obs, infos = envs.reset(options=_reset_options(cells, current, again_N))
            starts = list(infos["start_state"])
            solved_N &= ~again_N
            begins_N = again_N


def rates_by_task(episodes: Sequence[Episode], tasks: Sequence[Task]) -> list[Rate]:
    """One rate per task that was tried, in task order."""
    tried = sorted({episode.task_id for episode in episodes})
    return [_rate(tasks[i].name, [e for e in episodes if e.task_id == i]) for i in tried]


def rates_by_suite(episodes: Sequence[Episode], tasks: Sequence[Task]) -> list[Rate]:
    """One rate per suite that was tried, in task order."""
    suites = dict.fromkeys(tasks[i].suite for i in sorted({episode.task_id for episode in episodes}))
    return [_rate(suite, [e for e in episodes if tasks[e.task_id].suite == suite]) for suite in suites]


def overall_rate(episodes: Sequence[Episode]) -> Rate:
    """All episodes together."""
    return _rate("all episodes", episodes)


def task_weighted_mean(rates: Sequence[Rate]) -> float:
    """Mean of the tasks' rates: every task counts once, however many episodes it got."""
    return statistics.fmean(rate.mean for rate in rates)


def suite_weighted_mean(rates: Sequence[Rate]) -> float:
    """Mean of the suites' rates, as LIBERO's and Meta-World's published averages are taken.

    Meta-World's suites are its four difficulty buckets of 28, 11, 6 and 5 tasks, so this is not the mean over tasks.
    """
    return statistics.fmean(rate.mean for rate in rates)


def _rate(label: str, episodes: Sequence[Episode]) -> Rate:
    return Rate(label=label, successes=sum(e.success_once for e in episodes), episodes=len(episodes))


def _blocks(num_cells: int, num_slots: int) -> list[deque[int]]:
    bounds = [slot * num_cells // num_slots for slot in range(num_slots + 1)]
    return [deque(range(low, high)) for low, high in itertools.pairwise(bounds)]


def _reset_options(
    cells: Sequence[StartState], current: Sequence[int], mask_N: np.ndarray
) -> dict[str, np.ndarray]:
    return {
        "reset_mask": mask_N.copy(),
        "task_id": np.array([cells[index].task_id for index in current]),
        "trial_id": np.array([cells[index].trial_id for index in current]),
    }


def observation_rows(obs: Mapping[str, Any], slots: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """The observations of some slots; instructions are a tuple of str."""
    return {
        key: value[np.asarray(slots)] if isinstance(value, np.ndarray) else tuple(value[i] for i in slots)
        for key, value in obs.items()
    }


def _episode(cell: StartState, stats: Mapping[str, np.ndarray], slot: int, start_state: str) -> Episode:
    return Episode(
        task_id=cell.task_id,
        trial_id=cell.trial_id,
        success_once=bool(stats["success_once"][slot]),
        success_at_end=bool(stats["success_at_end"][slot]),
        total_reward=float(stats["return"][slot]),
        length=int(stats["length"][slot]),
        seconds=float(stats["seconds"][slot]),
        start_state=start_state,
    )


def _show(
    on_frame: Callable[[Frame], None] | None,
    obs: Mapping[str, Any],
    current: Sequence[int],
    solved_N: np.ndarray,
    mask_N: np.ndarray,
    begins_N: np.ndarray,
) -> None:
    if on_frame is None:
        return
    for slot in np.flatnonzero(mask_N).tolist():
        on_frame(
            Frame(
                slot=slot,
                episode=current[slot],
                image=obs["image"][slot],
                success=bool(solved_N[slot]),
                first=bool(begins_N[slot]),
            )
        )
