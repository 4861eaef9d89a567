"""Groups of episodes from one start state: gathered in lock-step, checked, and told apart in the log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer, Decision
from zoo.rollout.collector import ChunkExperience
from zoo.rollout.env_loop import Row, staged_rows

if TYPE_CHECKING:
    from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm

_SHORT = 8
"""Characters of a start state's hash that the log shows."""


@dataclass(frozen=True)
class GroupOutcome:
    """How the G episodes of one group went."""

    start_state: str
    """Hash of the state they all began in."""
    successes: int
    """Episodes that were solved at any step."""
    size: int
    """G."""
    kept: bool = False
    """Does it take part in the update?"""


class GroupExperience(ChunkExperience):
    """Rounds of one episode per slot; round r of slot n fills column r * N + n of the buffer."""

    def __init__(self) -> None:
        self.outcomes: list[GroupOutcome] = []
        self.lost_N = torch.zeros(0, dtype=torch.bool)
        self.num_resampled = 0
        """Dead groups of the last rollout that live ones took the place of."""
        self.extra_rounds = 0
        """Rounds that this took."""
        self._spare: ChunkRolloutBuffer | None = None

    def gather(self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback) -> bool:
        grpo: Any = algorithm
        self.outcomes = []
        self.num_resampled = self.extra_rounds = 0
        self.lost_N = torch.zeros(algorithm.chunk_buffer.columns, dtype=torch.bool)
        for number in range(grpo.rollouts_per_update):
            if not self._round(algorithm, env, callback, number, algorithm.chunk_buffer):
                return False
        return self._replace_dead_groups(algorithm, env, callback)

    def last_values(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        """Nothing follows: rounds end with their episodes."""

    def _replace_dead_groups(
        self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback
    ) -> bool:
        """Dynamic sampling (Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2), within `resample_dead_groups` rounds.

        A further round is kept aside; its live groups take the places of dead ones, first come first served, and
        the rest of it is dropped. So an update has the size it was given, or less when the rounds run out.
        """
        grpo: Any = algorithm
        buffer, size = algorithm.chunk_buffer, grpo.group_size
        for number in range(grpo.resample_dead_groups):
            dead_P = ~grpo.groups_that_count(buffer, self.lost_N)
            if not dead_P.any():
                break
            if self._spare is None:
                self._spare = buffer.like(env.num_envs)
            self._spare.reset()
            fresh = GroupExperience()
            fresh.lost_N = torch.zeros(env.num_envs, dtype=torch.bool)
            if not fresh._round(
                algorithm, env, callback, grpo.rollouts_per_update + number, self._spare, first_column=0
            ):
                return False
            self.extra_rounds += 1
            live_P = grpo.groups_that_count(self._spare, fresh.lost_N)
            for ours, theirs in zip(_indices(dead_P), _indices(live_P)):
                place = slice(ours * size, (ours + 1) * size)
                buffer.take_columns(place, self._spare, slice(theirs * size, (theirs + 1) * size))
                self.outcomes[ours] = fresh.outcomes[theirs]
                self.lost_N[place] = False
                self.num_resampled += 1
        return True

    def _round(
        self,
        algorithm: VLAOnPolicyAlgorithm,
        env: VecEnv,
        callback: BaseCallback,
        number: int,
        buffer: ChunkRolloutBuffer,
        first_column: int | None = None,
    ) -> bool:
        """Round `number` of the rollout: one episode in every slot, into `buffer` from `first_column` on.

        Its columns follow those of the rounds before it unless `first_column` says otherwise.
        """
        grpo: Any = algorithm
        if grpo._needs_reset:
            with algorithm.clock.phase("env"):
                algorithm._last_obs = env.reset()  # type: ignore[assignment]
        grpo._needs_reset = True
        column = number * env.num_envs if first_column is None else first_column
        return _Round(algorithm, callback, number, column, buffer, self).run()


class _Round:
    """One episode in every slot."""

    def __init__(
        self,
        algorithm: Any,
        callback: BaseCallback,
        number: int,
        first_column: int,
        buffer: ChunkRolloutBuffer,
        experience: GroupExperience,
    ) -> None:
        self._algorithm = algorithm
        self._number = number
        self._callback = callback
        self._envs = algorithm.grouped_envs
        self._experience = experience
        self._first_column = first_column
        self._buffer = buffer
        self._solved_N = np.zeros(self._envs.num_envs, dtype=bool)
        self._start_N = [""] * self._envs.num_envs

    def run(self) -> bool:
        """False when a callback stopped it."""
        algorithm, size = self._algorithm, self._algorithm.group_size
        before = self._number * algorithm.n_steps
        rows = staged_rows(
            algorithm, algorithm.env.unwrapped, algorithm.n_steps, first_decision=before, renew=False
        )
        with closing(rows):
            for number, row in enumerate(rows):
                if number == 0:
                    self._start_N = [info["start_state"] for info in row.infos]
                    check_shared_start(self._start_N, size)
                if not self._take(before, number, row):
                    return False
        assert self._envs.finished.all(), "an episode outlived its task's horizon"
        for first in range(0, len(self._start_N), size):
            self._experience.outcomes.append(
                GroupOutcome(self._start_N[first], int(self._solved_N[first : first + size].sum()), size)
            )
        return True

    def _take(self, before: int, number: int, row: Row) -> bool:
        """Count a decision of the slots that still play and keep it; False when the rollout is to stop."""
        sample, slots = row.sample, row.slots
        executed_n = np.array([info["executed"] for info in row.infos])
        told = dict(zip(slots.tolist(), row.infos, strict=True))
        if not self._algorithm.after_decision(
            self._callback,
            decision=before + number,
            executed=self._of_all(executed_n, slots),
            infos=[told.get(slot, {}) for slot in range(self._envs.num_envs)],
            dones=self._of_all(row.done_n, slots),
            rewards=self._of_all(row.reward_n, slots),
            new_obs=row.new_obs,
            actions=sample.action_BKA.cpu().numpy(),
        ):
            return False
        cut_n = np.array([info["TimeLimit.truncated"] for info in row.infos])
        self._buffer.write(
            number,
            self._first_column + slots,
            Decision(
                obs=row.obs,
                record=sample.record,
                logprob_nKA=sample.logprob_BKA,
                value_n=sample.value_B,
                reward_n=row.reward_n,
                executed_n=executed_n,
                terminated_n=row.done_n & ~cut_n,
                # An episode's score is the sum of its rewards, so nothing is estimated beyond a time limit.
                truncated_n=np.zeros(len(slots), dtype=bool),
                final_value_n=torch.zeros(len(slots)),
            ),
        )
        self._solved_N[slots] |= np.array([info["success"] for info in row.infos])
        lost = self._first_column + slots[[info["lost"] for info in row.infos]]
        self._experience.lost_N[torch.from_numpy(lost)] = True
        return True

    def _of_all(self, value_n: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """`[N]`: zero where a slot rests."""
        value_N = np.zeros(self._envs.num_envs, dtype=value_n.dtype)
        value_N[slots] = value_n
        return value_N


def _indices(mask_P: Tensor) -> list[int]:
    return torch.nonzero(mask_P)[:, 0].tolist()


def check_shared_start(start_states: Sequence[str], group_size: int) -> None:
    """Assert that slots g*G .. g*G + G-1 began in one state; anything else would compare apples with pears."""
    for first in range(0, len(start_states), group_size):
        members = start_states[first : first + group_size]
        if len(set(members)) != 1:
            raise AssertionError(
                f"group {first // group_size} (slots {first} .. {first + group_size - 1}) began in "
                f"{len(set(members))} different states: {', '.join(one[:_SHORT] for one in members)}"
            )


def all_outcomes(
    own: Sequence[GroupOutcome], kept_P: Tensor, process_group: ProcessGroup
) -> list[GroupOutcome]:
    """Every rank's outcomes, with what became of them (bool `[P]` of this rank's)."""
    told = [asdict(replace(one, kept=kept)) for one, kept in zip(own, kept_P.tolist(), strict=True)]
    return [GroupOutcome(**one) for part in process_group.all_gather_object(told) for one in part]


def group_lines(outcomes: Sequence[GroupOutcome]) -> list[str]:
    """One line: each group's start state (shortened), its successes, and whether it takes part."""
    parts = [
        f"{one.start_state[:_SHORT]} {one.successes}/{one.size}{'' if one.kept else ' dead'}"
        for one in outcomes
    ]
    return ["groups: " + " | ".join(parts)] if parts else []
