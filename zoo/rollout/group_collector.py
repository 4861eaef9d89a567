"""Collecting groups of episodes from one start state, in lock-step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import BadValue
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.round_collector import RoundCollector
from zoo.rollout.stats import GroupOutcome, GroupStats
from zoo.rollout.types import OnStep, RolloutStart, Step

_SHORT = 8
"""Characters of a start state's hash that the log shows."""


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """Settings of a `GroupCollector` besides `CollectorConfig`."""

    group_size: int
    """G, adjacent sub-environments that share their start states."""
    num_rounds: int
    """Episodes of each sub-environment."""
    max_extra_rounds: int
    """Further rounds, at most, that replace groups without signal."""
    has_signal: Callable[[ChunkRolloutBuffer, Tensor], Tensor]
    """`(buffer, lost_N) -> bool [P]`: groups an update can learn from."""


class GroupCollector(RoundCollector):
    """Rounds in which the members of a group begin in one state."""

    def __init__(self, *args: Any, groups: GroupConfig, **kwargs: Any) -> None:
        super().__init__(*args, num_rounds=groups.num_rounds, **kwargs)
        self.groups = GroupStats([], torch.zeros(0, dtype=torch.bool))
        """Results of the last rollout."""
        self._group_config = groups
        self._spare: ChunkRolloutBuffer | None = None

    def results(self) -> dict[str, Any]:
        return {"groups": self.groups}

    def _fill(self, start: RolloutStart, on_step: OnStep) -> bool:
        self._begin_at(start)
        self.groups = _no_groups(self.buffer.columns)
        for number in range(self._group_config.num_rounds):
            first_column = number * self.env.num_envs
            if not self._round(start.number, number, self.buffer, first_column, self.groups, on_step):
                return False
        return self._resample(start.number, on_step)

    def _resample(self, rollout: int, on_step: OnStep) -> bool:
        """Dynamic sampling (Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2), within `max_extra_rounds`.

        A further round goes to a spare buffer; its groups with signal replace those without, in order, and its other
        groups are dropped. So an update has its configured size, or less when the rounds run out.
        """
        config, groups = self._group_config, self.groups
        size = config.group_size
        for extra in range(config.max_extra_rounds):
            signal_P = config.has_signal(self.buffer, groups.lost_N)
            if signal_P.all():
                break
            if self._spare is None:
                self._spare = self.buffer.like(self.env.num_envs)
            self._spare.reset()
            spare = _no_groups(self.env.num_envs)
            if not self._round(rollout, config.num_rounds + extra, self._spare, 0, spare, on_step):
                return False
            groups.extra_rounds += 1
            spare_signal_P = config.has_signal(self._spare, spare.lost_N)
            for place, source in zip(_indices(~signal_P), _indices(spare_signal_P)):
                columns = slice(place * size, (place + 1) * size)
                self.buffer.take_columns(columns, self._spare, slice(source * size, (source + 1) * size))
                groups.outcomes[place] = spare.outcomes[source]
                groups.lost_N[columns] = False
                groups.num_resampled += 1
        return True

    def _round(
        self,
        rollout: int,
        number: int,
        buffer: ChunkRolloutBuffer,
        first_column: int,
        groups: GroupStats,
        on_step: OnStep,
    ) -> bool:
        """Collect round `number`, one episode in every sub-environment, into `buffer` from `first_column` on."""
        size = self._group_config.group_size
        solved_N = np.zeros(self.env.num_envs, dtype=bool)
        start_state_N: list[str] = []

        def write(row: int, step: Step) -> None:
            if row == 0:
                start_state_N.extend(step.start_state_n)
                check_shared_start(start_state_N, size)
            # A time limit is an end like any other: an episode's score is the sum of its rewards.
            buffer.write(row, first_column + step.env_n, step)
            solved_N[step.env_n] |= step.success_n
            groups.lost_N[torch.from_numpy(first_column + step.env_n[step.lost_n])] = True

        if not self._play(rollout, number, on_step, write):
            return False
        groups.outcomes += [
            GroupOutcome(start_state_N[first], int(solved_N[first : first + size].sum()), size)
            for first in range(0, len(start_state_N), size)
        ]
        return True


def _no_groups(num_columns: int) -> GroupStats:
    return GroupStats([], torch.zeros(num_columns, dtype=torch.bool))


def _indices(mask_P: Tensor) -> list[int]:
    return torch.nonzero(mask_P)[:, 0].tolist()


def check_shared_start(start_states: Sequence[str], group_size: int) -> None:
    """Raise `BadValue` unless sub-environments g*G .. g*G + G-1, which are compared, began in one state."""
    for first in range(0, len(start_states), group_size):
        members = start_states[first : first + group_size]
        if len(set(members)) != 1:
            raise BadValue(
                f"group {first // group_size} (sub-environments {first} .. {first + group_size - 1}) began in "
                f"{len(set(members))} different states: {', '.join(state[:_SHORT] for state in members)}; "
                "reset must restore a start state exactly: what is random in a Gymnasium environment is drawn from "
                "self.np_random after super().reset(seed=seed)"
            )


def all_outcomes(own: Sequence[GroupOutcome], kept_P: Tensor, process_group: ProcessGroup) -> list[GroupOutcome]:
    """Every rank's outcomes; `kept_P`, bool, are this rank's groups that the update uses."""
    outcomes = [asdict(replace(outcome, kept=kept)) for outcome, kept in zip(own, kept_P.tolist(), strict=True)]
    gathered = process_group.all_gather_object(outcomes)
    return [GroupOutcome(**outcome) for of_rank in gathered for outcome in of_rank]


def group_lines(outcomes: Sequence[GroupOutcome]) -> list[str]:
    """One line: successes of a group, whether the update drops it, and of how many groups that is so."""
    kinds = Counter((group.successes, group.size, group.kept) for group in outcomes)
    groups = [
        f"{successes}/{size}{'' if kept else ' dead'}{f' x{count}' if count > 1 else ''}"
        for (successes, size, kept), count in sorted(kinds.items())
    ]
    return ["groups: " + " | ".join(groups)] if groups else []
