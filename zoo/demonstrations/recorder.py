"""Episodes of an expert or a policy: which start states are tried, and what each frame holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from vla_gym.specs import StartState, Task
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.experts.base import Expert

REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
"""LeRobot's names for what a step led to."""
Cell = tuple[StartState, int]
"""A start state and the round it is tried in."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is done in one slot in one step."""

    action_A: np.ndarray
    """What the dataset is to say was right, float32."""
    executed_A: np.ndarray
    """What the simulator gets, float32."""
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    """More columns of this frame."""


class Actor(Protocol):
    """Acts in several slots at once."""

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> Mapping[int, Choice]:
        """What to do in the slots whose episodes still run."""

    def ended(self, obs: Mapping[str, Any], slot: int, *, terminated: bool) -> None:
        """A slot's episode is over, by the task's rule or else by time, in the state that `obs` shows."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One episode of T simulator steps, a frame each: what was seen, then what the expert did."""

    task: str
    """Name of the task."""
    instruction: str
    """What a policy is told."""
    start: StartState
    """Where it began."""
    start_state: str
    """Fingerprint of the simulator state it began in."""
    success: bool
    """Solved at any step?"""
    images: Mapping[str, np.ndarray]
    """Camera -> uint8 `[T, H, W, 3]`, before the step."""
    state_TS: np.ndarray
    """Proprioception before the step, float32; S may be 0."""
    action_TA: np.ndarray
    """The expert's actions, float32 in [-1, 1]; with noise, not what was executed but what would have been right."""
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    """More columns of a dataset: name -> `[T]` or `[T, D]`, float32, int64 or bool."""

    @property
    def length(self) -> int:
        """T."""
        return len(self.action_TA)


def candidates(tasks: Sequence[Task], num_rounds: int) -> list[Cell]:
    """Every (start state, round) in the order they are tried: all tasks' trial 0, all tasks' trial 1, ..."""
    longest = max(task.num_trials for task in tasks)
    return [
        (StartState(task_id=task_id, trial_id=trial), number)
        for number in range(num_rounds)
        for trial in range(longest)
        for task_id, task in enumerate(tasks)
        if trial < task.num_trials
    ]


def demonstrate(
    envs: VLAVectorEnv,
    make_expert: Callable[[Task], Expert],
    cells: Sequence[Cell],
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Demonstration]:
    """One episode of an expert from each cell, at most as many as slots, all at once; in the order of `cells`.

    `envs`: chunk 1, `privileged`, autoreset DISABLED. With `noise` the executed action is the expert's plus a
    normal deviate of that standard deviation, drawn from (seed, start state, round) alone.
    """
    tasks = envs.benchmark.tasks
    experts = [make_expert(tasks[cell.task_id]) for cell, _ in cells]
    generators = [np.random.default_rng([seed, c.task_id, c.trial_id, number]) for c, number in cells]
    return record_episodes(envs, _Experts(experts, generators, noise), cells)


class _Experts:
    """An expert for each slot, and where its noise comes from; see `Actor`."""

    def __init__(
        self, experts: Sequence[Expert], generators: Sequence[np.random.Generator], noise: float
    ) -> None:
        self._experts, self._generators, self._noise = experts, generators, noise

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> dict[int, Choice]:
        choices = {}
        for slot in live:
            wanted_A = self._experts[slot].action(obs["privileged"][slot])
            noise_A = self._noise * self._generators[slot].standard_normal(len(wanted_A))
            choices[slot] = Choice(action_A=wanted_A, executed_A=(wanted_A + noise_A).astype(np.float32))
        return choices

    def ended(self, obs: Mapping[str, Any], slot: int, *, terminated: bool) -> None:
        pass


def record_episodes(envs: VLAVectorEnv, actor: Actor, cells: Sequence[Cell]) -> list[Demonstration]:
    """One episode from each cell, see `demonstrate`; a frame for each simulator step."""
    if envs.chunk != 1 or len(cells) > envs.num_envs:
        raise ValueError(f"{len(cells)} cells for {envs.num_envs} slots, chunk {envs.chunk}")
    num_envs, tasks = envs.num_envs, envs.benchmark.tasks
    padded = [cells[min(slot, len(cells) - 1)][0] for slot in range(num_envs)]
    obs, infos = envs.reset(
        options={
            "task_id": np.array([cell.task_id for cell in padded]),
            "trial_id": np.array([cell.trial_id for cell in padded]),
        }
    )
    shown: list[list[dict[str, np.ndarray]]] = [[] for _ in cells]
    starts = list(infos["start_state"])
    live = list(range(len(cells)))
    action_NA = np.zeros((num_envs, envs.benchmark.action_dim), dtype=np.float32)
    while live:
        for slot, choice in actor.act(obs, live).items():
            shown[slot].append({**_frame(obs, slot), "action": choice.action_A, **choice.extra})
            action_NA[slot] = choice.executed_A
        obs, reward_N, terminated_N, truncated_N, infos = envs.step(action_NA)
        for slot in tuple(live):
            done = bool(terminated_N[slot] or truncated_N[slot])
            shown[slot][-1] |= {
                REWARD: np.asarray(reward_N[slot], dtype=np.float32),
                DONE: np.asarray(done),
                SUCCESS: np.asarray(infos["success"][slot], dtype=bool),
            }
            if done:
                live.remove(slot)
                actor.ended(obs, slot, terminated=bool(terminated_N[slot]))
    return [
        _demonstration(tasks[cell.task_id], cell, starts[slot], shown[slot])
        for slot, (cell, _) in enumerate(cells)
    ]


_CAMERAS = ("image", "wrist_image")


def _frame(obs: Mapping[str, Any], slot: int) -> dict[str, np.ndarray]:
    return {key: obs[key][slot] for key in (*_CAMERAS, "state") if key in obs}


def _demonstration(
    task: Task, cell: StartState, start_state: str, frames: Sequence[Mapping[str, np.ndarray]]
) -> Demonstration:
    columns = {key: np.stack([frame[key] for frame in frames]) for key in frames[0]}
    no_state = np.zeros((len(frames), 0), dtype=np.float32)
    return Demonstration(
        task=task.name,
        instruction=task.instruction,
        start=cell,
        start_state=start_state,
        success=bool(columns[SUCCESS].any()),
        images={key: columns.pop(key) for key in _CAMERAS if key in columns},
        state_TS=columns.pop("state", no_state).astype(np.float32),
        action_TA=columns.pop("action"),
        extra=columns,
    )
