"""Checks of a vector environment's inputs: actions, and the options of `reset`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vla_gym.errors import BadValue, shown, unknown_name
from vla_gym.specs import StartState, Task

START_OPTIONS = ("task_id", "trial_id")
RESET_OPTIONS = ("reset_mask", *START_OPTIONS)


def read_actions(
    actions: object, running_N: np.ndarray, single: spaces.Box, where: Callable[[int], str] = "slot {}".format
) -> np.ndarray:
    """Actions as a fresh float32 `[N, K, A]` clipped to [-1, 1].

    With K = 1, `[N, A]` is accepted too. Rows of environments that do not run are ignored. Raises `BadValue` for
    another shape, for what is no number, and for NaN or infinity in the row of a running environment, which
    `where` describes.
    """
    num_envs, (chunk, action_dim) = len(running_N), single.shape
    try:
        raw = np.asarray(actions, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise BadValue(f"actions must be an array of numbers, got {type(actions).__name__}: {error}") from error
    if chunk == 1 and raw.shape == (num_envs, action_dim):
        raw = raw[:, None]
    if raw.shape != (num_envs, chunk, action_dim):
        also = f" or [{num_envs}, {action_dim}]" if chunk == 1 else ""
        raise BadValue(
            f"actions have shape {list(raw.shape)}, expected [num_envs, chunk, action_dim] = "
            f"[{num_envs}, {chunk}, {action_dim}]{also}"
        )
    if not np.isfinite(raw).all():
        bad = ~np.isfinite(raw) & running_N[:, None, None]
        if bad.any():
            env, step, dim = np.argwhere(bad)[0].tolist()
            raise BadValue(
                f"actions[{env}, {step}, {dim}] is {raw[env, step, dim]} [{where(env)}]; every action must be "
                "finite, in [-1, 1]"
            )
        raw = np.nan_to_num(raw)
    return np.clip(raw, -1.0, 1.0)


def read_reset_options(
    options: Mapping[str, Any] | None, num_envs: int, tasks: tuple[Task, ...]
) -> tuple[np.ndarray | None, dict[int, StartState] | None]:
    """(`reset_mask` or None for all, environment -> start state asked for, or None when the schedule chooses).

    Raises `UnknownName` for another option, `BadValue` for a wrong shape, dtype or range.
    """
    options = options or {}
    for key in options:
        if key not in RESET_OPTIONS:
            raise unknown_name("reset option", key, RESET_OPTIONS)
    mask_N = options.get("reset_mask")
    if mask_N is not None:
        if not isinstance(mask_N, np.ndarray) or mask_N.dtype != np.bool_ or mask_N.shape != (num_envs,):
            raise BadValue(f"options['reset_mask'] must be a bool array of shape [{num_envs}], got {shown(mask_N)}")
        if not mask_N.any():
            raise BadValue("options['reset_mask'] must hold at least one True")
        mask_N = mask_N.copy()
    if ("task_id" in options) != ("trial_id" in options):
        raise BadValue("options['task_id'] and options['trial_id'] go together; only one was given")
    if "task_id" not in options:
        return mask_N, None
    task_N = _ids("task_id", options["task_id"], num_envs)
    trial_N = _ids("trial_id", options["trial_id"], num_envs)
    chosen = range(num_envs) if mask_N is None else np.flatnonzero(mask_N).tolist()
    return mask_N, {env: _start(int(task_N[env]), int(trial_N[env]), tasks) for env in chosen}


def join_options(entries: Sequence[Mapping[str, Any]], num_envs: int) -> dict[str, np.ndarray]:
    """Reset options of all environments from one dict per environment, of `task_id` and `trial_id`: int64 `[N]` each.

    Empty when all entries are. Raises `UnknownName` for another key, `BadValue` for another number of entries, for
    what is no integer, and when only some name a start state.
    """
    if len(entries) != num_envs:
        raise BadValue(f"a list of reset options must have one dict per slot, {num_envs}, got {len(entries)}")
    for key in (key for entry in entries for key in entry):
        if key not in START_OPTIONS:
            raise unknown_name("reset option of a single slot", key, START_OPTIONS)
    if not any(entries):
        return {}
    for env, entry in enumerate(entries):
        for key in START_OPTIONS:
            if key not in entry:
                raise BadValue(
                    f"options[{env}] has no '{key}', got {dict(entry)}: when one dict of a list names a start "
                    "state, every slot must give task_id and trial_id"
                )
            if not isinstance(entry[key], int | np.integer) or isinstance(entry[key], bool):
                raise BadValue(f"options[{env}]['{key}'] must be an integer, got {shown(entry[key])}")
    return {key: np.array([entry[key] for entry in entries], dtype=np.int64) for key in START_OPTIONS}


def _ids(name: str, value: object, num_envs: int) -> np.ndarray:
    raw = np.asarray(value)
    if not np.issubdtype(raw.dtype, np.integer) or raw.shape not in ((), (num_envs,)):
        raise BadValue(f"options['{name}'] must be an integer or {num_envs} integers, got {raw.dtype}{list(raw.shape)}")
    return np.broadcast_to(raw, (num_envs,))


def _start(task_id: int, trial_id: int, tasks: tuple[Task, ...]) -> StartState:
    if not 0 <= task_id < len(tasks):
        raise BadValue(f"task_id {task_id} is outside 0 .. {len(tasks) - 1}")
    count = tasks[task_id].num_trials
    if not 0 <= trial_id < count:
        raise BadValue(f"trial_id {trial_id} of task {task_id} is outside 0 .. {count - 1}")
    return StartState(task_id=task_id, trial_id=trial_id)
