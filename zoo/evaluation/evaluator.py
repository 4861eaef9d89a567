"""Success of a policy on fixed start states: the choice of start states, and the episode loop."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.specs import StartState, Task


class Predictor(Protocol):
    """The part of a Stable-Baselines3 policy that evaluation needs; `VLAPolicy` is a `NoisePredictor`."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Actions `[B, K, A]` for a batch of observations."""


@runtime_checkable
class NoisePredictor(Predictor, Protocol):
    """A policy that takes its random numbers, so that an episode depends on no other."""

    def predict_with_noise(self, observation: Any, noise: Any, *, deterministic: bool = False) -> np.ndarray:
        """Actions `[B, K, A]` for a batch of observations."""


class EvaluationEnv(Protocol):
    """The part of `VLAVectorEnv` (autoreset DISABLED) that evaluation needs."""

    num_envs: int

    def reset(self, *, options: Mapping[str, Any] | None = None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Begin the episodes of `options`: reset_mask, task_id and trial_id."""

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, Any]]:
        """One decision."""


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One finished episode, in an evaluation or in training."""

    task_id: int
    """Index into the benchmark's tasks; -1 where there are none."""
    trial_id: int = -1
    """Start state of that task; -1 where it was not chosen."""
    success_once: bool
    """Solved at any step; the headline."""
    success_at_end: bool
    """Solved in the last state."""
    total_reward: float
    """Sum of rewards."""
    length: int
    """Simulator steps."""
    seconds: float = 0.0
    """Wall-clock seconds."""
    start_state: str = ""
    """Hash of the simulator state it began in; "" where it was not kept."""
    round: int = 0
    """How often an evaluation had played the start state before."""

    @classmethod
    def from_info(
        cls, stats: Mapping[str, Any], *, task_id: int, trial_id: int, start_state: str = "", round: int = 0
    ) -> EpisodeRecord:
        """Return the record of one environment's `info["episode"]` of `vla_gym`."""
        return cls(
            task_id=task_id,
            trial_id=trial_id,
            success_once=bool(stats["success_once"]),
            success_at_end=bool(stats["success_at_end"]),
            total_reward=float(stats["return"]),
            length=int(stats["length"]),
            seconds=float(stats.get("seconds", 0.0)),
            start_state=start_state,
            round=round,
        )


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One environment's image before one decision; an episode's last frame is the state it ended in."""

    env: int
    """Environment index."""
    episode: int
    """Index of the episode, as `evaluate` returns them."""
    image: np.ndarray
    """Main camera, uint8 `[H, W, 3]`."""
    success: bool
    """Whether the task was solved by then."""
    first: bool = False
    """Whether the episode begins here; the episode of a lost simulator begins once more."""


def choose_start_states(tasks: Sequence[Task], episodes: int | None) -> list[StartState]:
    """Return the start states to evaluate, task-major; the same for the same arguments, always.

    None takes the whole grid. Fewer episodes than tasks take trial 0 of tasks spread evenly; more give
    each task its first trials, tasks earlier in the benchmark getting one more when it does not divide.
    """
    grid = sum(task.num_trials for task in tasks)
    if episodes is None:
        episodes = grid
    if not 1 <= episodes <= grid:
        raise BadValue(f"episodes must lie in 1 .. {grid} (all start states of {len(tasks)} tasks), got {episodes}")
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


def tasks_of(env_ids: Sequence[str], tasks: Sequence[Task]) -> list[int]:
    """Return the indices of those `tasks` that the environments have, in their order; without environments all of them.

    Raises `BadValue` for an environment that has none, and what `find_benchmark` raises for an id.
    """
    if not env_ids:
        return list(range(len(tasks)))
    wanted = set()
    for env_id in env_ids:
        names = {(task.suite, task.name) for task in find_benchmark(env_id).tasks}
        found = {task_id for task_id, task in enumerate(tasks) if (task.suite, task.name) in names}
        if not found:
            raise BadValue(f"--eval-tasks {env_id}: the environment that is trained has none of its tasks")
        wanted |= found
    return sorted(wanted)


def evaluate(
    policy: Predictor,
    envs: EvaluationEnv,
    start_states: Sequence[StartState],
    *,
    deterministic: bool = True,
    rounds: int = 1,
    seed: int = 0,
    on_frame: Callable[[Frame], None] | None = None,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
) -> list[EpisodeRecord]:
    """`rounds` episodes from each start state, one after the other, start states in their order.

    Each environment takes a contiguous block of them (few task switches); one that is through costs nothing.
    `envs` must have autoreset DISABLED and at most as many environments as there are episodes. An episode lost
    with its worker (`on_worker_error="restart"`) is run again; `envs` gives up by itself. Random numbers of a
    `NoisePredictor` follow from `seed`, start state, round and decision alone; others draw their own.
    """
    played = episodes_of(start_states, rounds)
    if envs.num_envs > len(played):
        raise ValueError(f"{envs.num_envs} environments for {len(played)} episodes")
    decide = _Decider(policy, deterministic=deterministic, seed=seed)
    blocks = _blocks(len(played), envs.num_envs)
    current = [block.popleft() for block in blocks]
    obs, infos = envs.reset(options=_reset_options(played, current, np.ones(envs.num_envs, dtype=bool)))
    hashes = list(infos["start_state"])
    solved_N = np.zeros(envs.num_envs, dtype=bool)
    live_N = np.ones(envs.num_envs, dtype=bool)
    decision_N = np.zeros(envs.num_envs, dtype=int)
    done: dict[int, EpisodeRecord] = {}
    begins_N = live_N.copy()
    actions: np.ndarray | None = None
    while True:
        _show(on_frame, obs, current, solved_N, live_N, begins_N)
        begins_N[:] = False
        live = np.flatnonzero(live_N)
        chosen = decide(observation_rows(obs, live), [(*played[current[n]], int(decision_N[n])) for n in live])
        if actions is None:
            actions = np.zeros((envs.num_envs, *chosen.shape[1:]), dtype=np.float32)
        actions[live_N] = chosen
        decision_N += 1
        obs, _, terminated_N, truncated_N, infos = envs.step(actions)
        solved_N |= infos["success"].astype(bool)
        ended_N = (terminated_N | truncated_N) & live_N
        if not ended_N.any():
            continue
        lost_N = ended_N & infos["lost"]
        _show(on_frame, obs, current, solved_N, ended_N & ~lost_N, begins_N)
        for env in np.flatnonzero(ended_N & ~lost_N).tolist():
            start, number = played[current[env]]
            episode = done[current[env]] = EpisodeRecord.from_info(
                {name: value[env] for name, value in infos["episode"].items()},
                task_id=start.task_id,
                trial_id=start.trial_id,
                start_state=hashes[env],
                round=number,
            )
            if on_episode is not None:
                on_episode(episode)
        again_N = lost_N | (ended_N & np.array([bool(block) for block in blocks]))
        live_N &= ~ended_N | again_N
        if not live_N.any():
            return [done[index] for index in range(len(played))]
        if again_N.any():
            for env in np.flatnonzero(again_N & ~lost_N).tolist():
                current[env] = blocks[env].popleft()
            obs, infos = envs.reset(options=_reset_options(played, current, again_N))
            hashes = list(infos["start_state"])
            solved_N &= ~again_N
            decision_N[again_N] = 0
            begins_N = again_N


def episodes_of(start_states: Sequence[StartState], rounds: int) -> list[tuple[StartState, int]]:
    """Return the episodes of an evaluation, (start state, round) each, in the order of `evaluate`."""
    return [(start, number) for start in start_states for number in range(rounds)]


class _Decider:
    """Chooses the actions of some episodes' next decisions, in NumPy."""

    def __init__(self, policy: Predictor, *, deterministic: bool, seed: int) -> None:
        self._policy, self._deterministic, self._seed = policy, deterministic, seed

    def __call__(self, obs: Mapping[str, Any], episodes: Sequence[tuple[StartState, int, int]]) -> np.ndarray:
        """`episodes`: start state, round and number of the decision for each row of `obs`."""
        if not isinstance(self._policy, NoisePredictor):
            return self._policy.predict(obs, deterministic=self._deterministic)[0]
        from vla_policies.actions.noise import EpisodeDecision, EpisodeNoise  # brings torch

        decisions = [
            EpisodeDecision(start.task_id, start.trial_id, number, decision) for start, number, decision in episodes
        ]
        noise = EpisodeNoise(self._seed, decisions)
        return self._policy.predict_with_noise(obs, noise, deterministic=self._deterministic)


def observation_rows(obs: Mapping[str, Any], envs: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """Return the observations of some environments; instructions are a tuple of str."""
    return {
        key: value[np.asarray(envs)] if isinstance(value, np.ndarray) else tuple(value[env] for env in envs)
        for key, value in obs.items()
    }


def _blocks(num_episodes: int, num_envs: int) -> list[deque[int]]:
    bounds = [env * num_episodes // num_envs for env in range(num_envs + 1)]
    return [deque(range(low, high)) for low, high in itertools.pairwise(bounds)]


def _reset_options(
    played: Sequence[tuple[StartState, int]], current: Sequence[int], mask_N: np.ndarray
) -> dict[str, np.ndarray]:
    return {
        "reset_mask": mask_N.copy(),
        "task_id": np.array([played[index][0].task_id for index in current]),
        "trial_id": np.array([played[index][0].trial_id for index in current]),
    }


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
    for env in np.flatnonzero(mask_N).tolist():
        on_frame(
            Frame(
                env=env,
                episode=current[env],
                image=obs["image"][env],
                success=bool(solved_N[env]),
                first=bool(begins_N[env]),
            )
        )
