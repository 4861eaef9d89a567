"""Collecting a rollout: a policy, vector environments and a buffer; no algorithm.

RolloutCollector       T decisions of every sub-environment, or rounds of one episode in each
└── GroupCollector     rounds in which the members of a group begin in one state
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.observation import encode_instructions
from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies.actions.noise import SlotNoise
from vla_policies.policy import VLAPolicy
from vla_policies.types import ActionSample
from zoo.config.algorithm_configs import CreditLevel
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer, Observation, Step, step_values
from zoo.rollout.env_loop import EnvLoop
from zoo.rollout.stats import GroupStats, PhaseClock, RolloutRecorder, RolloutStats

OnStep = Callable[[Step | None], bool]
"""Called after every decision (with None after a rollout of other processes); False stops the rollout."""


@dataclass(frozen=True)
class RolloutStart:
    """Where a rollout begins."""

    number: int
    """Number of updates done; the noise of decisions follows from it."""
    num_timesteps: int
    """Simulator steps of the run so far."""
    obs: Observation
    """Present observation of every sub-environment."""
    at_episode_start: bool = False
    """Whether every sub-environment stands at the beginning of an episode."""


class RolloutSource(Protocol):
    """Fills the rollout buffer: `RolloutCollector` here, `zoo.training.remote_rollouts` from other processes."""

    obs: Observation
    """Present observation of this rank's sub-environments, also after a rollout that was stopped."""
    off_policy: bool
    """Whether rollouts may be of older weights than those the update begins with."""

    def collect(self, start: RolloutStart, on_step: OnStep) -> RolloutStats | None:
        """Fill the buffer with the next rollout; None when `on_step`, on any rank, stopped it.

        Every rank must call it.
        """


@dataclass(frozen=True, kw_only=True)
class CollectorConfig:
    """Settings of a `RolloutCollector`."""

    num_decisions: int
    """T, decisions of each sub-environment; of a round at most."""
    num_rounds: int | None = None
    """Rounds of one episode in every sub-environment; None = T decisions, new episodes beginning where others end."""
    reward_level: CreditLevel = "chunk"
    """"action" keeps the reward of every simulator step."""
    value_level: CreditLevel = "chunk"
    """"action" keeps a value of every simulator step."""
    bootstrap_time_limit: bool = True
    """Whether the return of an episode cut off by time goes on with the value of its last observation."""
    bootstrap_termination: bool = False
    """Whether that of an episode which the task's own rule ended does, too."""


class RolloutCollector:
    """Collects T decisions of every sub-environment, or rounds.

    In a round no sub-environment begins another episode before all have ended: round r of sub-environment n fills
    column r * N + n, and what follows an episode's end in its column is not executed.

    The noise of a decision follows from `seed`, the rollout's number, the decision's number and the sub-environment's
    place among those of all ranks, so decisions are the same however sub-environments are spread over ranks.
    """

    off_policy = False

    def __init__(
        self,
        env: SB3VecEnv,
        policy: VLAPolicy,
        buffer: ChunkRolloutBuffer,
        process_group: ProcessGroup,
        seed: int,
        config: CollectorConfig,
        clock: PhaseClock | None = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.buffer = buffer
        self.seed = seed
        self.recorder = RolloutRecorder()
        """This rank's numbers of the present rollout."""
        self.obs: Observation = {}
        """Present observation."""
        self.first_env = first_env(env.envs)
        """Place of this rank's first sub-environment among those of all ranks."""
        self._done_N = np.zeros(env.num_envs, dtype=bool)
        self._at_episode_start = False
        self._process_group = process_group
        self._config = config
        self._clock = PhaseClock() if clock is None else clock
        self._flag = ""

    def collect(self, start: RolloutStart, on_step: OnStep) -> RolloutStats | None:
        """See `RolloutSource.collect`."""
        finished = self.fill(start, on_step)
        if self._process_group.any(not finished):
            return None
        stats = self.recorder.finish(self._process_group, start.num_timesteps)
        return replace(stats, **self.results())

    def fill(self, start: RolloutStart, on_step: OnStep) -> bool:
        """Fill the buffer with this rank's decisions; False when a rank stopped it. Waits for no other rank."""
        self._flag = self._process_group.new_flag()
        self.recorder.begin()
        self.obs, self._at_episode_start = start.obs, start.at_episode_start
        return self._fill(start.number, on_step)

    def results(self) -> dict[str, Any]:
        """Return the fields of `RolloutStats` that differ by kind of rollout."""
        if self._config.num_rounds is None:
            return {"done_N": self._done_N, "last_value_N": self._values(self.obs)}
        # Every episode has ended: nothing follows the last row.
        return {"last_value_N": torch.zeros(self.buffer.columns)}

    def _fill(self, rollout: int, on_step: OnStep) -> bool:
        if self._config.num_rounds is not None:
            return all(self._round(rollout, number, on_step) for number in range(self._config.num_rounds))

        def write(row: int, step: Step) -> None:
            self._write(row, step.env_n, step)
            self._done_N = step.done_n

        return self._play(rollout, 0, on_step, write, renew=True)

    def _round(self, rollout: int, number: int, on_step: OnStep) -> bool:
        def write(row: int, step: Step) -> None:
            self._write(row, number * self.env.num_envs + step.env_n, step)

        return self._play_round(rollout, number, on_step, write)

    def _play_round(self, rollout: int, number: int, on_step: OnStep, write: Callable[[int, Step], None]) -> bool:
        if not self._at_episode_start:
            with self._clock.phase("env"):
                self.obs = self.env.reset()
        self._at_episode_start = False
        finished = self._play(rollout, number * self._config.num_decisions, on_step, write, renew=False)
        assert not finished or self.env.envs.finished.all(), "an episode outlived its task's horizon"
        return finished

    def _play(
        self, rollout: int, first_decision: int, on_step: OnStep, write: Callable[[int, Step], None], *, renew: bool
    ) -> bool:
        """Play at most T decisions, each of which goes to `write` with its row; False when a rank stopped it."""

        def act(obs: Observation, decision: int, env_n: np.ndarray) -> ActionSample:
            return self.policy.act(obs, noise=SlotNoise(self.seed, (rollout, decision), self.first_env + env_n))

        loop = EnvLoop(self.env, self.obs, act, self._clock)
        steps = loop.steps(self._config.num_decisions, first_decision=first_decision, renew=renew)
        try:
            with closing(steps):
                for row, step in enumerate(steps):
                    if not on_step(step):
                        self._process_group.set_flag(self._flag)
                        return False
                    self.recorder.add(first_decision + row, self.first_env, step, self.env)
                    if self._process_group.size > 1 and self._process_group.has_flag(self._flag):
                        return False
                    write(row, step)
        finally:
            self.obs = loop.obs
        return True

    def _write(self, row: int, columns: np.ndarray, step: Step) -> None:
        outcome, config = step.outcome, self._config
        # An episode lost with its simulator has not failed.
        cut_off_n = outcome.truncated_n & (config.bootstrap_time_limit | outcome.lost_n)
        bootstrapped_n = np.where(outcome.terminated_n, config.bootstrap_termination, cut_off_n)
        final_value_n = torch.zeros(len(bootstrapped_n))
        if bootstrapped_n.any():
            last = {key: array[bootstrapped_n] for key, array in encode_instructions(outcome.obs).items()}
            final_value_n[torch.from_numpy(bootstrapped_n)] = self._values(last)
        per_step = config.reward_level == "action"
        step_value_nK = None
        if per_step and config.value_level == "action":
            step_value_nK = step_values(step.sample, step.sample.action_BKA.shape[1])
        self.buffer.write(
            row,
            columns,
            step,
            bootstrapped_n=bootstrapped_n,
            final_value_n=final_value_n,
            step_reward_nK=outcome.step_reward_nK if per_step else None,
            step_value_nK=step_value_nK,
        )

    def _values(self, obs: Observation) -> Tensor:
        with torch.no_grad(), self._clock.phase("policy"):
            return self.policy.predict_values(obs).flatten().cpu()  # type: ignore[arg-type]


class GroupCollector(RolloutCollector):
    """Collects rounds in which the members of a group begin in one state."""

    def __init__(
        self,
        *args: Any,
        group_size: int,
        max_extra_rounds: int,
        has_signal: Callable[[ChunkRolloutBuffer, Tensor], Tensor],
        **kwargs: Any,
    ) -> None:
        """Take also what groups need.

        Args:
            group_size: G, adjacent sub-environments that share their start states.
            max_extra_rounds: further rounds, at most, that replace groups without signal.
            has_signal: `(buffer, lost_N) -> bool [P]`: groups an update can learn from.
        """
        super().__init__(*args, **kwargs)
        self._group_size = group_size
        self._max_extra_rounds = max_extra_rounds
        self._has_signal = has_signal
        self._groups = _no_groups(self.buffer.columns)
        self._spare: ChunkRolloutBuffer | None = None

    def results(self) -> dict[str, Any]:
        return {"groups": self._groups}

    def _fill(self, rollout: int, on_step: OnStep) -> bool:
        self._groups = _no_groups(self.buffer.columns)
        return super()._fill(rollout, on_step) and self._resample(rollout, on_step)

    def _round(self, rollout: int, number: int, on_step: OnStep) -> bool:
        return self._group_round(rollout, number, self.buffer, number * self.env.num_envs, self._groups, on_step)

    def _resample(self, rollout: int, on_step: OnStep) -> bool:
        """Dynamic sampling (Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2), within `max_extra_rounds`.

        A further round goes to a spare buffer; its groups with signal replace those without, in order, and its other
        groups are dropped. So an update has its configured size, or less when the rounds run out.
        """
        groups, size, num_rounds = self._groups, self._group_size, self._config.num_rounds
        assert num_rounds is not None
        for extra in range(self._max_extra_rounds):
            signal_P = self._has_signal(self.buffer, groups.lost_N)
            if signal_P.all():
                break
            if self._spare is None:
                self._spare = ChunkRolloutBuffer(self.buffer.buffer_size, n_envs=self.env.num_envs)
            self._spare.reset()
            spare = _no_groups(self.env.num_envs)
            if not self._group_round(rollout, num_rounds + extra, self._spare, 0, spare, on_step):
                return False
            groups.extra_rounds += 1
            spare_signal_P = self._has_signal(self._spare, spare.lost_N)
            places, sources = (torch.nonzero(mask_P)[:, 0].tolist() for mask_P in (~signal_P, spare_signal_P))
            for place, source in zip(places, sources):
                columns, taken = place * size + torch.arange(size), slice(source * size, (source + 1) * size)
                self.buffer.write_columns(
                    columns, {name: whole[:, taken] for name, whole in self._spare.collected().items()}
                )
                groups.solved_N[columns] = spare.solved_N[taken]
                groups.lost_N[columns] = False
                groups.num_resampled += 1
        return True

    def _group_round(
        self,
        rollout: int,
        number: int,
        buffer: ChunkRolloutBuffer,
        first_column: int,
        groups: GroupStats,
        on_step: OnStep,
    ) -> bool:
        """Collect round `number` into `buffer` from `first_column` on, and its results into `groups`."""

        def write(row: int, step: Step) -> None:
            outcome, columns = step.outcome, first_column + step.env_n
            if row == 0:
                check_shared_start(outcome.start_state_n.tolist(), self._group_size)
            # A time limit is an end like any other: an episode's score is the sum of its rewards.
            buffer.write(row, columns, step)
            groups.solved_N[torch.from_numpy(columns[outcome.success_n])] = True
            groups.lost_N[torch.from_numpy(columns[outcome.lost_n])] = True

        return self._play_round(rollout, number, on_step, write)


def _no_groups(num_columns: int) -> GroupStats:
    return GroupStats(*torch.zeros(2, num_columns, dtype=torch.bool))


def check_shared_start(start_states: Sequence[str], group_size: int) -> None:
    """Raise `BadValue` unless sub-environments g*G .. g*G + G-1, which are compared, began in one state."""
    for first in range(0, len(start_states), group_size):
        members = start_states[first : first + group_size]
        if len(set(members)) != 1:
            raise BadValue(
                f"group {first // group_size} (sub-environments {first} .. {first + group_size - 1}) began in "
                f"{len(set(members))} different states: {', '.join(state[:8] for state in members)}; "
                "reset must restore a start state exactly: what is random in a Gymnasium environment is drawn from "
                "self.np_random after super().reset(seed=seed)"
            )


def first_env(envs: VLAVectorEnv) -> int:
    """Return the place of this rank's first sub-environment among those of all ranks."""
    return envs.config.group_offset * envs.config.group_size


def check_share(envs: VLAVectorEnv, process_group: ProcessGroup) -> None:
    """Raise `BadValue` unless these are this rank's groups of all.

    Ranks with the same ones would begin in the same states, draw the same decisions and collect the same rollout.
    """
    groups = envs.num_envs // envs.config.group_size
    first = process_group.rank * groups
    if process_group.size > 1 and envs.config.group_offset != first:
        raise BadValue(
            f"rank {process_group.rank} of {process_group.size} has the environments from group "
            f"{envs.config.group_offset} on, which are another rank's; make them with vla_gym.make_vec(..., "
            f"group_offset={first}, num_groups={process_group.size * groups})"
        )
