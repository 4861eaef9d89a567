"""Groups of episodes from one start state: gathered in lock-step, checked, and told apart in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.sb3 import encode_instructions
from vla_gym.vector_info import of_slot
from vla_policies.types import ActionSample
from zoo.buffer import ChunkRolloutBuffer, Decision
from zoo.experience import ChunkExperience

if TYPE_CHECKING:
    from zoo.algorithm import VLAOnPolicyAlgorithm

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

    def collect(self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback) -> bool:
        grpo: Any = algorithm
        algorithm.policy.set_training_mode(False)
        algorithm.chunk_buffer.reset()
        self.outcomes = []
        self.num_resampled = self.extra_rounds = 0
        self.lost_N = torch.zeros(algorithm.chunk_buffer.columns, dtype=torch.bool)
        callback.on_rollout_start()
        for number in range(grpo.rollouts_per_update):
            if not self._round(algorithm, env, callback, number * env.num_envs, algorithm.chunk_buffer):
                return False
        if not self._replace_dead_groups(algorithm, env, callback):
            return False
        with algorithm.clock.phase("advantages"):
            algorithm.credit(None)
        callback.update_locals({"rollout_buffer": algorithm.chunk_buffer})
        callback.on_rollout_end()
        return True

    def _replace_dead_groups(
        self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback
    ) -> bool:
        """Dynamic sampling (Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2), within `resample_dead_groups` rounds.

        A further round is kept aside; its live groups take the places of dead ones, first come first served, and
        the rest of it is dropped. So an update has the size it was given, or less when the rounds run out.
        """
        grpo: Any = algorithm
        buffer, size = algorithm.chunk_buffer, grpo.group_size
        for _ in range(grpo.resample_dead_groups):
            dead_P = ~grpo.groups_that_count(buffer, self.lost_N)
            if not dead_P.any():
                break
            if self._spare is None:
                self._spare = buffer.like(env.num_envs)
            self._spare.reset()
            fresh = GroupExperience()
            fresh.lost_N = torch.zeros(env.num_envs, dtype=torch.bool)
            if not fresh._round(algorithm, env, callback, 0, self._spare):
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
        first_column: int,
        buffer: ChunkRolloutBuffer,
    ) -> bool:
        """One more episode in every slot, into `buffer` from `first_column` on."""
        grpo: Any = algorithm
        if grpo._needs_reset:
            with algorithm.clock.phase("env"):
                algorithm._last_obs = env.reset()  # type: ignore[assignment]
        grpo._needs_reset = True
        return _Round(algorithm, callback, first_column, buffer, self).run()


class _Round:
    """One episode in every slot."""

    def __init__(
        self,
        algorithm: Any,
        callback: BaseCallback,
        first_column: int,
        buffer: ChunkRolloutBuffer,
        experience: GroupExperience,
    ) -> None:
        self._algorithm = algorithm
        self._callback = callback
        self._envs = algorithm.grouped_envs
        self._experience = experience
        self._first_column = first_column
        self._buffer = buffer
        self._solved_N = np.zeros(self._envs.num_envs, dtype=bool)
        self._start_N: list[str] = []

    def run(self) -> bool:
        """False when a callback stopped it."""
        running_N = np.ones(self._envs.num_envs, dtype=bool)
        row = 0
        while running_N.any():
            assert row < self._algorithm.n_steps, "an episode outlived its task's horizon"
            ended = self._decide(row, np.flatnonzero(running_N))
            if ended is None:
                return False
            running_N &= ~ended
            row += 1
        size = self._algorithm.group_size
        for first in range(0, len(self._start_N), size):
            self._experience.outcomes.append(
                GroupOutcome(self._start_N[first], int(self._solved_N[first : first + size].sum()), size)
            )
        return True

    def _decide(self, row: int, slots: np.ndarray) -> np.ndarray | None:
        """One decision of the running `slots`; bool `[N]` of those that ended, None when stopped."""
        algorithm = self._algorithm
        obs = {key: value[slots] for key, value in algorithm._last_obs.items()}
        with algorithm.clock.phase("policy"):
            sample: ActionSample = algorithm.policy.act(obs)
            actions = np.zeros((self._envs.num_envs, *sample.action_BKA.shape[1:]), dtype=np.float32)
            actions[slots] = sample.action_BKA.cpu().numpy()
        with algorithm.clock.phase("env"):
            raw, reward_N, terminated_N, truncated_N, batched = self._envs.step(actions)
            new_obs = encode_instructions(raw)
        if row == 0:
            self._start_N = [str(one) for one in batched["start_state"]]
            check_shared_start(self._start_N, algorithm.group_size)
        ended_N = np.zeros(self._envs.num_envs, dtype=bool)
        ended_N[slots] = (terminated_N | truncated_N)[slots]
        infos = self._infos(batched, ended_N, new_obs)
        if not algorithm.after_decision(
            self._callback,
            executed=batched["executed"],
            infos=infos,
            dones=ended_N,
            rewards=reward_N.astype(np.float32),
            new_obs=new_obs,
            actions=actions,
        ):
            return None
        self._buffer.write(
            row,
            self._first_column + slots,
            self._decision(obs, sample, slots, reward_N, terminated_N, batched),
        )
        self._solved_N |= batched["success"]
        lost = np.flatnonzero(batched["lost"]) + self._first_column
        self._experience.lost_N[torch.from_numpy(lost)] = True
        algorithm._last_obs = new_obs
        return ended_N

    @staticmethod
    def _decision(
        obs: Mapping[str, np.ndarray],
        sample: ActionSample,
        slots: np.ndarray,
        reward_N: np.ndarray,
        terminated_N: np.ndarray,
        batched: Mapping[str, Any],
    ) -> Decision:
        return Decision(
            obs=obs,
            record=sample.record,
            logprob_nKA=sample.logprob_BKA,
            value_n=sample.value_B,
            reward_n=reward_N[slots],
            executed_n=batched["executed"][slots],
            terminated_n=terminated_N[slots],
            truncated_n=np.zeros(len(slots), dtype=bool),
            final_value_n=torch.zeros(len(slots)),
        )

    @staticmethod
    def _infos(
        batched: Mapping[str, Any], ended_N: np.ndarray, new_obs: Mapping[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        """Infos as `SB3VecEnv` gives them; of a held slot nothing that ended before is told again."""
        infos = [of_slot(batched, slot) for slot in range(len(ended_N))]
        for slot, info in enumerate(infos):
            stats = info.get("episode")
            if not ended_N[slot]:
                info.pop("episode", None)
            elif stats is not None:
                stats["r"], stats["l"], stats["t"] = stats["return"], stats["length"], stats["seconds"]
                info["is_success"] = stats["success_once"]
                info["terminal_observation"] = {key: value[slot] for key, value in new_obs.items()}
        return infos


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


def group_lines(outcomes: Sequence[GroupOutcome], kept_P: Tensor) -> list[str]:
    """One line: each group's start state (shortened), its successes, and whether it takes part."""
    parts = [
        f"{one.start_state[:_SHORT]} {one.successes}/{one.size}{'' if kept else ' dead'}"
        for one, kept in zip(outcomes, kept_P.tolist(), strict=True)
    ]
    return ["groups: " + " | ".join(parts)] if parts else []
