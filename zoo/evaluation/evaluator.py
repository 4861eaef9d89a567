"""Success of a policy on fixed start states: the choice of start states, and the episode loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.specs import StartState, Task
from vla_gym.vector.vector_env import VLAVectorEnv


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
    envs: VLAVectorEnv,
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
    played, num_envs = episodes_of(start_states, rounds), envs.num_envs
    if num_envs > len(played):
        raise ValueError(f"{num_envs} environments for {len(played)} episodes")
    bounds = np.arange(num_envs + 1) * len(played) // num_envs
    current_N, end_N = bounds[:-1].copy(), bounds[1:]
    live_N, begins_N = np.ones(num_envs, dtype=bool), np.ones(num_envs, dtype=bool)
    solved_N, decision_N = np.zeros(num_envs, dtype=bool), np.zeros(num_envs, dtype=int)
    done: dict[int, EpisodeRecord] = {}
    actions: np.ndarray | None = None

    def show(mask_N: np.ndarray) -> None:
        if on_frame is None:
            return
        for env in np.flatnonzero(mask_N).tolist():
            episode, image = int(current_N[env]), obs["image"][env]
            on_frame(
                Frame(env=env, episode=episode, image=image, success=bool(solved_N[env]), first=bool(begins_N[env]))
            )

    while True:
        if begins_N.any():
            starts = [played[index][0] for index in current_N]
            chosen = {name: np.array([getattr(start, name) for start in starts]) for name in ("task_id", "trial_id")}
            obs, infos = envs.reset(options={"reset_mask": begins_N.copy(), **chosen})
            hashes = list(infos["start_state"])
            solved_N[begins_N] = False
            decision_N[begins_N] = 0
        show(live_N)
        begins_N[:] = False
        live = np.flatnonzero(live_N)
        decisions = [(*played[current_N[env]], int(decision_N[env])) for env in live]
        decided = _decide(policy, observation_rows(obs, live), decisions, deterministic=deterministic, seed=seed)
        if actions is None:
            actions = np.zeros((num_envs, *decided.shape[1:]), dtype=np.float32)
        actions[live_N] = decided
        decision_N += 1
        obs, _, terminated_N, truncated_N, infos = envs.step(actions)
        solved_N |= infos["success"].astype(bool)
        ended_N = (terminated_N | truncated_N) & live_N
        if not ended_N.any():
            continue
        lost_N = ended_N & infos["lost"]
        show(ended_N & ~lost_N)
        for env in np.flatnonzero(ended_N & ~lost_N).tolist():
            start, number = played[current_N[env]]
            stats = {name: value[env] for name, value in infos["episode"].items()}
            episode = done[int(current_N[env])] = EpisodeRecord(
                task_id=start.task_id,
                trial_id=start.trial_id,
                success_once=bool(stats["success_once"]),
                success_at_end=bool(stats["success_at_end"]),
                total_reward=float(stats["return"]),
                length=int(stats["length"]),
                seconds=float(stats["seconds"]),
                start_state=hashes[env],
                round=number,
            )
            if on_episode is not None:
                on_episode(episode)
        begins_N = lost_N | (ended_N & (current_N + 1 < end_N))
        live_N &= ~ended_N | begins_N
        if not live_N.any():
            return [done[index] for index in range(len(played))]
        current_N += begins_N & ~lost_N


def episodes_of(start_states: Sequence[StartState], rounds: int) -> list[tuple[StartState, int]]:
    """Return the episodes of an evaluation, (start state, round) each, in the order of `evaluate`."""
    return [(start, number) for start in start_states for number in range(rounds)]


def _decide(
    policy: Predictor,
    obs: Mapping[str, Any],
    decisions: Sequence[tuple[StartState, int, int]],
    *,
    deterministic: bool,
    seed: int,
) -> np.ndarray:
    """Return the actions of some episodes' next `decisions`: start state, round and number of each."""
    if not isinstance(policy, NoisePredictor):
        return policy.predict(obs, deterministic=deterministic)[0]
    from vla_policies.actions.noise import EpisodeDecision, EpisodeNoise  # brings torch

    named = [EpisodeDecision(start.task_id, start.trial_id, *others) for start, *others in decisions]
    return policy.predict_with_noise(obs, EpisodeNoise(seed, named), deterministic=deterministic)


def observation_rows(obs: Mapping[str, Any], envs: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """Return the observations of some environments; instructions are a tuple of str."""
    return {
        key: value[np.asarray(envs)] if isinstance(value, np.ndarray) else tuple(value[env] for env in envs)
        for key, value in obs.items()
    }
