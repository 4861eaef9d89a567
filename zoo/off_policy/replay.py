"""The replay: every decision of this process, of demonstrations and rollouts alike, in memory-mapped files.

A row is an observation and the decision that was made on it: the chunk, the reward of each simulator step, and how
many of its K steps were executed. `next` names the row of the observation after it. Rows are only ever appended, so a
checkpoint needs their number alone, and a run that goes on from it finds them as they were.

Shape letters: `vla_gym.specs`; B decisions of a batch, n of this process's N sub-environments.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.observation import (
    MAX_INSTRUCTION_BYTES,
    ObservationLayout,
    decode_instruction,
    encode_instruction,
    encode_instructions,
)
from vla_policies.processing.observations import on_device
from zoo.demonstrations.lerobot_reader import UNKNOWN_START
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.demonstrations.recorder import DONE, EXECUTED, REWARD, SUCCESS, Demonstration
from zoo.rollout.buffer import Observation, Step

NONE, UNKNOWN = -1, -2
"""In `next`: nothing follows, for the task's own rule ended the episode; the observation that follows was not kept."""
_NUMBERS: Mapping[str, type] = {
    "executed": np.int64,
    "next": np.int64,
    "episode": np.int64,
    "elapsed": np.int64,
    "ends": np.bool_,
    "solved": np.bool_,
    "demonstration": np.bool_,
}
"""Columns of one number. `executed` 0: no decision (yet). `episode`: the episode's first row. `elapsed`: simulator
steps of the episode before the decision. `ends`, `solved`: the episode ended, was solved in the decision."""


@dataclass(frozen=True)
class Decisions:
    """B decisions, on the device."""

    row_B: np.ndarray
    """Their rows, int64."""
    obs: dict[str, Tensor]
    action_BKA: Tensor
    """Chunks, float32; what was not executed of them had no effect."""
    reward_BK: Tensor
    """Reward of each simulator step, float32; 0 where not executed."""
    executed_B: Tensor
    """h, simulator steps run of the chunk, int64."""
    next_obs: dict[str, Tensor]
    """Observation after it; any where `goes_on_B` is False."""
    goes_on_B: Tensor
    """Bool: the return goes on after the chunk, as it does after a time limit."""

    def discounted(self, gamma: float) -> tuple[Tensor, Tensor]:
        """Return each chunk's discounted reward, sum over i < h of gamma^i r_i, and gamma^h, or 0 after an end."""
        power_K = gamma ** torch.arange(self.reward_BK.shape[1], device=self.reward_BK.device)
        return self.reward_BK @ power_K, gamma**self.executed_B * self.goes_on_B


class Replay:
    """Decisions of N sub-environments, and of demonstrations.

    Disk: bytes of an observation + 4 K (A + 1) + 35 for each row; files are sparse and grow as rows come.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        *,
        num_envs: int,
        chunk: int,
        action_dim: int,
        capacity: int,
        folder: Path | None = None,
    ) -> None:
        """`capacity`: rows at most. `folder` None: a temporary one."""
        self.folder = Path(tempfile.mkdtemp(prefix="replay_")) if folder is None else folder
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.size = 0
        """Rows so far."""
        self.chunk = chunk
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {f"obs.{k}": v for k, v in layout.arrays().items()}
        shapes["obs.instruction"] = (MAX_INSTRUCTION_BYTES,), np.uint8
        shapes |= {"action": ((chunk, action_dim), np.float32), "reward": ((chunk,), np.float32)}
        shapes |= {name: ((), kind) for name, kind in _NUMBERS.items()}
        self.columns: dict[str, np.memmap[Any, Any]] = {}
        """Column -> `[capacity, ...]`."""
        for name, (shape, kind) in shapes.items():
            path = self.folder / f"{name}.bin"
            mode: Any = "r+" if path.is_file() else "w+"
            self.columns[name] = np.memmap(path, kind, mode, shape=(capacity, *shape))
        self.keys = [name.removeprefix("obs.") for name in self.columns if name.startswith("obs.")]
        self._open_N = np.full(num_envs, NONE)
        """Row of each sub-environment's present observation, on which nothing is decided yet."""

    # Writing --------------------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        """Write one decision of some sub-environments, whose chunks are `step.sample`'s."""
        outcome, env_n, columns = step.outcome, step.env_n, self.columns
        new_n = self._open_N[env_n] == NONE
        rows = self._append({key: step.obs[key][new_n] for key in self.keys})
        self._open_N[env_n[new_n]] = columns["episode"][rows] = rows
        row_n = self._open_N[env_n]
        # An episode that was lost with its simulator ends in no observation.
        follows_n = ~outcome.terminated_n & ~outcome.lost_n
        last = encode_instructions(outcome.obs)
        next_n = np.full(len(env_n), NONE)
        next_n[follows_n] = rows = self._append({key: last[key][follows_n] for key in self.keys})
        columns["episode"][rows] = columns["episode"][row_n[follows_n]]
        columns["elapsed"][rows] = (columns["elapsed"][row_n] + outcome.executed_n)[follows_n]
        columns["action"][row_n] = step.sample.action_BKA.cpu().numpy()
        columns["reward"][row_n] = outcome.step_reward_nK
        columns["next"][row_n] = next_n
        columns["ends"][row_n] = step.done_n
        columns["solved"][row_n] = outcome.success_n
        columns["executed"][row_n] = np.where(outcome.lost_n, 0, outcome.executed_n)
        self._open_N[env_n] = np.where(step.done_n, NONE, next_n)

    def add_demonstrations(self, demonstrations: Sequence[Demonstration]) -> None:
        """Write demonstrations: each frame with the next K actions, or the decisions that `write_dataset` wrote.

        Without recorded rewards a step is worth 1 where the task was first solved.
        """
        for one in demonstrations:
            self._add_demonstration(one)

    def _add_demonstration(self, one: Demonstration) -> None:
        length, columns, chunk = one.length, self.columns, self.chunk
        seen: dict[str, Any] = {key: np.asarray(image) for key, image in one.images.items()} | {"state": one.state_TS}
        seen["instruction"] = np.tile(encode_instruction(one.instruction), (length, 1))
        for key in self.keys:
            wanted, got = columns[f"obs.{key}"].shape[1:], seen[key].shape[1:] if key in seen else ()
            if wanted != got:
                raise BadValue(f"demonstrations have '{key}' of shape {got}, the environment's has {wanted}")
        solved_T = one.extra.get(SUCCESS, np.arange(length) == length - 1)
        reward_T = one.extra.get(REWARD, (np.cumsum(solved_T) == 1) & solved_T).astype(np.float32)
        if EXECUTED in one.extra:
            executed_T, step_T, action_TKA = one.extra[EXECUTED], np.ones(length, int), one.action_TA
            reward_TK = np.eye(chunk, dtype=np.float32)[executed_T - 1] * reward_T[:, None]
        else:
            at_TK = np.minimum(np.arange(length)[:, None] + np.arange(chunk), length - 1)
            within_TK = np.arange(length)[:, None] + np.arange(chunk) < length
            executed_T = step_T = within_TK.sum(axis=1)
            action_TKA = one.action_TA[at_TK] * within_TK[..., None]
            reward_TK = reward_T[at_TK] * within_TK
            solved_T = (solved_T[at_TK] & within_TK).any(axis=1)
        rows = self._append({key: seen[key] for key in self.keys})
        next_T = np.arange(length) + step_T
        ends_T = next_T == length
        columns["action"][rows] = action_TKA.reshape(length, chunk, -1)
        columns["reward"][rows] = reward_TK
        columns["next"][rows] = np.where(ends_T, np.where(solved_T, NONE, UNKNOWN), rows[0] + next_T)
        columns["episode"][rows] = rows[0]
        columns["elapsed"][rows] = np.arange(length) if step_T is executed_T else np.cumsum(executed_T) - executed_T
        columns["ends"][rows], columns["solved"][rows] = ends_T, solved_T
        columns["demonstration"][rows] = True
        columns["executed"][rows] = executed_T

    def _append(self, obs: Observation) -> np.ndarray:
        """Write observations to new rows; return these."""
        num = len(next(iter(obs.values())))
        rows = np.arange(self.size, self.size + num)
        if num and rows[-1] >= len(self.columns["next"]):
            raise BadValue(f"the replay has room for {len(self.columns['next'])} observations; raise n_timesteps")
        for name, kind in _NUMBERS.items():
            self.columns[name][rows] = NONE if name == "next" else kind(0)
        for key, value in obs.items():
            self.columns[f"obs.{key}"][rows] = value
        self.size += num
        return rows

    # Reading --------------------------------------------------------------------------------------------

    def rows(self, *, targets: bool = True) -> np.ndarray:
        """Rows that hold a decision, ascending; with `targets`, those of which it is known what follows."""
        holds = self.columns["executed"][: self.size] > 0
        return np.flatnonzero(holds & (self.columns["next"][: self.size] != UNKNOWN) if targets else holds)

    def draw(self, rng: np.random.Generator, num: int, share: float, rows: np.ndarray | None = None) -> np.ndarray:
        """Draw among `rows`, of which `share` are of demonstrations where there are both kinds (RLPD,
        arXiv:2302.02948); None: all that have targets."""
        rows = self.rows() if rows is None else rows
        taught = self.columns["demonstration"][rows]
        if taught.all() or not taught.any():
            return rng.choice(rows, num)
        num_taught = round(num * share)
        return np.concatenate([rng.choice(rows[taught], num_taught), rng.choice(rows[~taught], num - num_taught)])

    def observations(self, rows: np.ndarray, device: torch.device) -> dict[str, Tensor]:
        """Observations of these rows, on the device but for what is read on the CPU."""
        return on_device({key: torch.from_numpy(self.columns[f"obs.{key}"][rows]) for key in self.keys}, device)

    def decisions(self, rows: np.ndarray, device: torch.device) -> Decisions:
        """Return the decisions of these rows."""
        next_B = self.columns["next"][rows]
        taken = {
            name: torch.from_numpy(self.columns[name][rows]).to(device) for name in ("action", "reward", "executed")
        }
        return Decisions(
            row_B=rows,
            obs=self.observations(rows, device),
            action_BKA=taken["action"],
            reward_BK=taken["reward"],
            executed_B=taken["executed"],
            next_obs=self.observations(np.where(next_B < 0, rows, next_B), device),
            goes_on_B=torch.from_numpy(next_B >= 0).to(device),
        )

    # Checkpoints ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the files."""
        return {"size": self.size, "open": self._open_N.tolist()}

    def flush(self) -> None:
        """Write the files out."""
        for column in self.columns.values():
            column.flush()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state` of these files; raise `BadValue` where they hold less."""
        size, opened = int(state["size"]), np.array(state["open"], dtype=np.int64)
        if size and not self.columns["obs.instruction"][size - 1].any():
            raise BadValue(f"'{self.folder}' lacks decisions that the checkpoint counts: {size}; begin a new run")
        self.size, self._open_N = size, opened
        rows = opened[opened != NONE]
        self.columns["executed"][rows], self.columns["next"][rows] = 0, NONE


def write_dataset(replay: Replay, root: Path, *, fps: int) -> int:
    """Write the rollouts' finished episodes as a LeRobotDataset, a frame for each decision; return their number.

    An action is the whole chunk, K * A numbers; `fps` counts decisions. `Replay.add_demonstrations` reads it again.
    """
    columns, rows = replay.columns, replay.rows()
    rows = rows[~columns["demonstration"][rows]]
    episode_F = columns["episode"][rows]
    episodes = []
    for first in np.unique(episode_F[columns["ends"][rows]]):
        own = rows[episode_F == first]
        images = {key: columns[f"obs.{key}"][own] for key in replay.keys if columns[f"obs.{key}"].ndim == 4}
        state_TS = columns["obs.state"][own] if "state" in replay.keys else np.zeros((len(own), 0), np.float32)
        outcome = {REWARD: columns["reward"][own].sum(axis=1), SUCCESS: columns["solved"][own]}
        episodes.append(
            Demonstration(
                task="",
                instruction=decode_instruction(columns["obs.instruction"][first]),
                start=UNKNOWN_START,
                start_state="",
                success=bool(outcome[SUCCESS].any()),
                images=images,
                state_TS=state_TS,
                action_TA=columns["action"][own].reshape(len(own), -1),
                extra={**outcome, DONE: columns["ends"][own], EXECUTED: columns["executed"][own]},
            )
        )
    LeRobotWriter(root, {"decisions of": replay.chunk}, fps=fps).add(episodes, tried=len(episodes))
    return len(episodes)
