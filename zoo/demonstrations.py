"""Episodes shown by an expert: which start states it tries, and what each frame holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym.specs import StartState, Task
from vla_gym.vector import VLAVectorEnv
from zoo.experts.base import Expert


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

    @property
    def length(self) -> int:
        """T."""
        return len(self.action_TA)


def candidates(tasks: Sequence[Task], num_rounds: int) -> list[tuple[StartState, int]]:
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
    cells: Sequence[tuple[StartState, int]],
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Demonstration]:
    """One episode from each cell, at most as many as slots, all at once; in the order of `cells`.

    `envs`: chunk 1, `privileged`, autoreset DISABLED. With `noise` the executed action is the expert's plus a
    normal deviate of that standard deviation, drawn from (seed, start state, round) alone.
    """
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
    experts = [make_expert(tasks[cell.task_id]) for cell, _ in cells]
    generators = [np.random.default_rng([seed, c.task_id, c.trial_id, number]) for c, number in cells]
    shown: list[list[dict[str, np.ndarray]]] = [[] for _ in cells]
    solved = [False] * len(cells)
    starts = list(infos["start_state"])
    live = set(range(len(cells)))
    action_NA = np.zeros((num_envs, envs.benchmark.action_dim), dtype=np.float32)
    while live:
        for slot in live:
            wanted_A = experts[slot].action(obs["privileged"][slot])
            shown[slot].append(_frame(obs, slot, wanted_A))
            action_NA[slot] = wanted_A + noise * generators[slot].standard_normal(len(wanted_A))
        obs, _, terminated_N, truncated_N, infos = envs.step(action_NA)
        for slot in sorted(live):
            solved[slot] |= bool(infos["success"][slot])
            if terminated_N[slot] or truncated_N[slot]:
                live.remove(slot)
    return [
        _demonstration(tasks, cell, starts[slot], solved[slot], shown[slot])
        for slot, (cell, _) in enumerate(cells)
    ]


def _frame(obs: Mapping[str, Any], slot: int, wanted_A: np.ndarray) -> dict[str, np.ndarray]:
    kept = ("image", "wrist_image", "state")
    return {**{key: obs[key][slot] for key in kept if key in obs}, "action": wanted_A}


def _demonstration(
    tasks: Sequence[Task],
    cell: StartState,
    start_state: str,
    success: bool,
    frames: Sequence[Mapping[str, np.ndarray]],
) -> Demonstration:
    task = tasks[cell.task_id]
    cameras = [key for key in ("image", "wrist_image") if key in frames[0]]
    states = [frame.get("state", np.zeros(0, np.float32)) for frame in frames]
    return Demonstration(
        task=task.name,
        instruction=task.instruction,
        start=cell,
        start_state=start_state,
        success=success,
        images={key: np.stack([frame[key] for frame in frames]) for key in cameras},
        state_TS=np.stack(states).astype(np.float32),
        action_TA=np.stack([frame["action"] for frame in frames]),
    )
