"""Decisions and what came of them, row by row: the loop that holds a policy in one hand and environments in the other.

Environments of `vla_gym` are stepped in stages (`VLAVectorEnv.stages`, one by default): while the workers simulate
one stage the policy decides for the next. A row is told when all its stages are through, so callers see the same
rows, in the same order, however many stages there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from vla_gym.vector.sb3 import SB3VecEnv, encode_instructions
from vla_gym.vector.stage import Outcome, Stage
from vla_policies.types import ActionSample

if TYPE_CHECKING:
    from zoo.algorithms.collecting import CollectingAlgorithm


@dataclass(frozen=True)
class Row:
    """One decision of n slots."""

    slots: np.ndarray
    """Which ones, ascending, `[n]`."""
    obs: dict[str, np.ndarray]
    """What the policy saw, `[n, ...]`."""
    sample: ActionSample
    """What it decided."""
    new_obs: dict[str, np.ndarray]
    """What came next; where an episode ended and another began, that one's first observation."""
    reward_n: np.ndarray
    """Sum over the chunk, float32."""
    done_n: np.ndarray
    """Bool: the episode ended."""
    infos: list[dict[str, Any]]
    """One of each slot, as `SB3VecEnv` gives them."""


def plain_rows(algorithm: CollectingAlgorithm, env: VecEnv, num_rows: int) -> Generator[Row]:
    """`num_rows` decisions of every slot of any vector environment."""
    slots = np.arange(env.num_envs)
    shape = env.action_space.shape or ()
    for number in range(num_rows):
        obs: Any = algorithm._last_obs
        with algorithm.clock.phase("policy"):
            sample = algorithm.decide(obs, number, slots)
            actions = sample.action_BKA.cpu().numpy()
        with algorithm.clock.phase("env"):
            new_obs, reward_n, done_n, infos = env.step(actions.reshape(env.num_envs, *shape))
        algorithm._last_obs = new_obs  # type: ignore[assignment]
        yield Row(slots, obs, sample, new_obs, reward_n, done_n, infos)  # type: ignore[arg-type]


def staged_rows(
    algorithm: CollectingAlgorithm, env: SB3VecEnv, num_rows: int, *, first_decision: int = 0, renew: bool
) -> Generator[Row]:
    """At most `num_rows` decisions of every slot; `algorithm.decide` counts them from `first_decision`.

    With `renew` a new episode begins where one ended; else its slot rests, and the rows end with the last episode.
    However this ends, it leaves no step under way, and `algorithm._last_obs` as the slots stand.
    """
    last: Any = algorithm._last_obs
    parts = [
        _Part(algorithm, env, stage, {key: value[stage.slots] for key, value in last.items()}, renew)
        for stage in env.envs.stages
    ]
    for part in parts:
        part.decide_until(first_decision, first_decision + num_rows)
    try:
        while True:
            while any(part.under_way and not part.rows for part in parts):
                for part in parts:
                    part.turn()
            ready = [part.rows.popleft() for part in parts if part.rows]
            if not ready:
                return
            yield _side_by_side(ready)
    finally:
        for part in parts:
            part.decide_until(0, 0)
        while not env.envs.closed and any(part.under_way for part in parts):
            for part in parts:
                part.turn()
        algorithm._last_obs = _joined([part.obs for part in parts])


class _Part:
    """One stage in the course of a rollout. Each of its turns hears from the slots once and then asks them once."""

    def __init__(
        self,
        algorithm: CollectingAlgorithm,
        env: SB3VecEnv,
        stage: Stage,
        obs: dict[str, np.ndarray],
        renew: bool,
    ) -> None:
        self.obs = obs
        """The stage's present observation."""
        self.rows: deque[Row] = deque()
        """Decisions that are through and not yet told."""
        self._algorithm = algorithm
        self._env = env
        self._stage = stage
        self._renew = renew
        self._next, self._end = 0, 0
        self._asked: Row | None = None
        self._through: Row | None = None

    @property
    def under_way(self) -> bool:
        """Are workers at it?"""
        return self._stage.under_way

    def decide_until(self, next_decision: int, end: int) -> None:
        """Decide number `next_decision` now, if it is below `end`, and the others in turn."""
        self._next, self._end = next_decision, end
        if not self.under_way:
            self._decide()

    def turn(self) -> None:
        """Wait for what was asked of the slots, then begin new episodes or decide again."""
        if not self.under_way:
            return
        with self._algorithm.clock.phase("env"):
            outcome = self._stage.receive()
        self.obs = encode_instructions(outcome.obs)
        if self._through is None:
            row = self._told(outcome)
            if self._renew and row.done_n.any():
                self._through = row
                self._stage.send_reset(outcome.terminated_n | outcome.truncated_n)
                return
        else:
            row, self._through = self._through, None
        self.rows.append(replace(row, new_obs=self._of(row.slots)))
        self._decide()

    def _decide(self) -> None:
        here = np.flatnonzero(self._stage.running_n)
        if self._next >= self._end or not len(here):
            return
        slots = here + self._stage.slots.start
        obs = self._of(slots)
        with self._algorithm.clock.phase("policy"):
            sample = self._algorithm.decide(obs, self._next, slots)
            action_nKA = sample.action_BKA.cpu().numpy()
        actions = np.zeros((len(self._stage.running_n), *action_nKA.shape[1:]), dtype=np.float32)
        actions[here] = action_nKA
        self._next += 1
        with self._algorithm.clock.phase("env"):
            self._stage.send_step(actions)
        nothing = np.zeros(0)
        self._asked = Row(slots, obs, sample, obs, nothing, nothing, [])

    def _told(self, outcome: Outcome) -> Row:
        """The decision asked for, with what came of it."""
        assert self._asked is not None
        here = self._asked.slots - self._stage.slots.start
        return replace(
            self._asked,
            reward_n=outcome.reward_n[here].astype(np.float32),
            done_n=(outcome.terminated_n | outcome.truncated_n)[here],
            infos=self._env.slot_infos(
                outcome.infos, self.obs, outcome.terminated_n, outcome.truncated_n, here.tolist()
            ),
        )

    def _of(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        """The present observation of some of the stage's slots."""
        if len(slots) == len(self._stage.running_n):
            return self.obs
        return {key: value[slots - self._stage.slots.start] for key, value in self.obs.items()}


def _side_by_side(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    return Row(
        slots=np.concatenate([row.slots for row in rows]),
        obs=_joined([row.obs for row in rows]),
        sample=joined_samples([row.sample for row in rows]),
        new_obs=_joined([row.new_obs for row in rows]),
        reward_n=np.concatenate([row.reward_n for row in rows]),
        done_n=np.concatenate([row.done_n for row in rows]),
        infos=[info for row in rows for info in row.infos],
    )


def _joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return (
        parts[0]
        if len(parts) == 1
        else {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}
    )


def joined_samples(samples: Sequence[ActionSample]) -> ActionSample:
    """Decisions for several batches as those for one."""
    steps = [one.value_BK for one in samples if one.value_BK is not None]
    return ActionSample(
        action_BKA=torch.cat([one.action_BKA for one in samples]),
        logprob_BKA=torch.cat([one.logprob_BKA for one in samples]),
        value_B=torch.cat([one.value_B for one in samples]),
        record={key: torch.cat([one.record[key] for one in samples]) for key in samples[0].record},
        value_BK=torch.cat(steps) if steps else None,
    )
