"""Start state of every episode: a pure function of (seed, group, episode number), and of the weights if any are set.

Nothing depends on who finished first. So the G members of a group agree whatever their timing, a run is
resumed from the episode counters alone, and ranks share one schedule by their group offset. Weights, which the caller
sets and keeps, must be the same on every rank; members of a group agree on episodes begun under the same ones.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from vla_gym.errors import BadValue, check_integer, check_known, shown
from vla_gym.specs import StartState, Task

START_OPTIONS = ("task_id", "trial_id")
RESET_OPTIONS = ("reset_mask", *START_OPTIONS)
ScheduleKind = Literal["random", "grid"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Assigns the start states (task, trial) of a benchmark to groups of environments.

    `random`: every episode's is drawn over all, uniformly or by `weighted`. `grid`: every one exactly once over all
    groups, task-major, in contiguous blocks (few task switches); then a group is idle.
    """

    kind: ScheduleKind
    num_trials: tuple[int, ...]
    """Trials of each task."""
    seed: int
    """Seed of the random draws, >= 0."""
    group_size: int
    """G: adjacent environments that share their start states."""
    group_offset: int
    """Global number of the first local group (0 unless there are several ranks)."""
    num_groups: int
    """Groups over all ranks."""
    cumulative_P: np.ndarray | None = field(default=None, compare=False, repr=False)
    """Probability of the start states up to each, task-major, float64 ending in 1; None = uniform."""

    def start_state(self, env: int, episode: int) -> StartState | None:
        """Start of the `episode`-th (from 0) episode of local environment `env`; None when the grid is used up."""
        group = self.group_offset + env // self.group_size
        total = sum(self.num_trials)
        if self.kind == "random":
            rng = np.random.default_rng([self.seed, group, episode])
            if self.cumulative_P is None:
                return self._at(int(rng.integers(total)))
            return self._at(int(np.searchsorted(self.cumulative_P, rng.random(), side="right")))
        index = self._block(group) + episode
        return self._at(index) if index < self._block(group + 1) else None

    def reseeded(self, seed: int) -> Schedule:
        """The same schedule with another seed."""
        return dataclasses.replace(self, seed=seed)

    def weighted(self, weight_P: np.ndarray | None) -> Schedule:
        """The same schedule, drawn in proportion to `weight_P`: one weight per start state, task-major; None = uniform.

        Raises `BadValue` for a grid, for another shape, and unless all are finite, >= 0 and not all 0.
        """
        if weight_P is None:
            return dataclasses.replace(self, cumulative_P=None)
        if self.kind != "random":
            raise BadValue(f"weights of start states need schedule='random', got '{self.kind}', which plays each once")
        weight_P, total = np.asarray(weight_P, dtype=np.float64), sum(self.num_trials)
        usable = np.isfinite(weight_P).all() and (weight_P >= 0).all() and weight_P.any()
        if weight_P.shape != (total,) or not usable:
            raise BadValue(
                f"weights of start states must have shape [{total}], be finite, >= 0 and not all 0, got "
                f"{list(weight_P.shape)}: {shown(weight_P.tolist())}"
            )
        cumulative_P = np.cumsum(weight_P)
        return dataclasses.replace(self, cumulative_P=cumulative_P / cumulative_P[-1])

    def _block(self, group: int) -> int:
        """First start state of a group's part of the grid.

        Of T start states and G groups the last T % G have one more, as `evaluate_policy` of Stable-Baselines3
        expects.
        """
        size, rest = divmod(sum(self.num_trials), self.num_groups)
        return group * size + max(0, group - (self.num_groups - rest))

    def _at(self, index: int) -> StartState:
        ends = list(itertools.accumulate(self.num_trials))
        task_id = bisect.bisect_right(ends, index)
        return StartState(task_id=task_id, trial_id=index - ends[task_id] + self.num_trials[task_id])


def make_schedule(
    kind: str,
    tasks: tuple[Task, ...],
    *,
    num_envs: int,
    group_size: int = 1,
    group_offset: int = 0,
    num_groups: int | None = None,
    seed: int = 0,
) -> Schedule:
    """Check the arguments of `make_vec` that concern start states and build the schedule.

    Raises `UnknownName` for another kind, `BadValue` for groups that do not fit.
    """
    check_known("schedule", kind, ("random", "grid"))
    check_integer("group_size", group_size, 1)
    if num_envs % group_size:
        near = max(group_size, num_envs // group_size * group_size)
        raise BadValue(
            f"num_envs={num_envs} is not a multiple of group_size={group_size}: every group needs all its "
            f"slots. Nearest allowed: num_envs={near}"
        )
    end = check_integer("group_offset", group_offset, 0) + num_envs // group_size
    if num_groups is None and kind == "grid" and group_offset:
        raise BadValue("schedule='grid' with a group_offset needs num_groups, the groups of all ranks")
    num_groups = check_integer("num_groups", end if num_groups is None else num_groups, end, note="of all ranks")
    return Schedule(
        kind="grid" if kind == "grid" else "random",
        num_trials=tuple(task.num_trials for task in tasks),
        seed=check_seed(seed),
        group_size=group_size,
        group_offset=group_offset,
        num_groups=num_groups,
    )


def check_seed(seed: object) -> int:
    """A seed as an int >= 0, else `BadValue`."""
    return check_integer("seed", int(seed) if isinstance(seed, np.integer) else seed, 0)


def read_reset_options(
    options: Mapping[str, Any] | None, num_envs: int, tasks: tuple[Task, ...]
) -> tuple[np.ndarray | None, dict[int, StartState] | None]:
    """(`reset_mask` or None for all, environment -> start state asked for, or None when the schedule chooses).

    Raises `UnknownName` for another option, `BadValue` for a wrong shape, dtype or range.
    """
    options = options or {}
    for key in options:
        check_known("reset option", key, RESET_OPTIONS)
    mask_N = options.get("reset_mask")
    if mask_N is not None:
        mask_N = mask_N if isinstance(mask_N, np.ndarray) else np.array(mask_N, dtype=object)
        if mask_N.dtype != np.bool_ or mask_N.shape != (num_envs,) or not mask_N.any():
            raise BadValue(
                f"options['reset_mask'] must be a bool array of shape [{num_envs}] with at least one True, got "
                f"{shown(mask_N)}"
            )
        mask_N = mask_N.copy()
    if ("task_id" in options) != ("trial_id" in options):
        raise BadValue("options['task_id'] and options['trial_id'] go together; only one was given")
    if "task_id" not in options:
        return mask_N, None
    task_N = _ids("task_id", options["task_id"], num_envs)
    trial_N = _ids("trial_id", options["trial_id"], num_envs)
    chosen = range(num_envs) if mask_N is None else np.flatnonzero(mask_N).tolist()
    return mask_N, {env: checked_start(int(task_N[env]), int(trial_N[env]), tasks) for env in chosen}


def _ids(name: str, value: object, num_envs: int) -> np.ndarray:
    raw = np.asarray(value)
    if not np.issubdtype(raw.dtype, np.integer) or raw.shape not in ((), (num_envs,)):
        raise BadValue(f"options['{name}'] must be an integer or {num_envs} integers, got {raw.dtype}{list(raw.shape)}")
    return np.broadcast_to(raw, (num_envs,))


def checked_start(task_id: int, trial_id: int, tasks: tuple[Task, ...], *, what: str = "") -> StartState:
    """Return the start state; raise `BadValue` where there is no such task or trial, after "task_id" + `what`."""
    check_integer(f"task_id{what}", task_id, 0, len(tasks) - 1)
    check_integer(f"trial_id{what}", trial_id, 0, tasks[task_id].num_trials - 1, note=f"task {task_id}")
    return StartState(task_id=task_id, trial_id=trial_id)
