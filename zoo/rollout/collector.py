"""How experience is gathered and scored: one strategy per kind of policy, chosen once.

Experience
├── PlainExperience   any Stable-Baselines3 policy, see `zoo.algorithms.plain_experience`
└── ChunkExperience   policies with `act` and `evaluate`: decisions of K steps, kept token by token

The algorithm's update is the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.vector.sb3 import SB3VecEnv
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.types import ActionSample, Evaluation
from zoo.algorithms.scorers import ChunkScorer, RolloutScorer, step_values
from zoo.rollout.buffer import ChunkRolloutBuffer, Decision
from zoo.rollout.env_loop import Row, plain_rows, staged_rows
from zoo.rollout.minibatches import Columns, Piece, in_parts, pieces
from zoo.rollout.types import Minibatch, Part

if TYPE_CHECKING:
    from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
    from zoo.training.remote_rollouts import Delivery


@runtime_checkable
class ChunkPolicy(Protocol):
    """What tells a chunk policy from a plain one."""

    def act(
        self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE
    ) -> ActionSample:
        """Decide; `noise` has a row for each observation."""

    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        """Score decisions made earlier."""


def is_chunk_policy(policy_class: type) -> bool:
    """Has the class the methods of a `ChunkPolicy`?"""
    return issubclass(policy_class, ChunkPolicy)


class Experience(ABC):
    """Collects a rollout, hands it out in minibatches, and scores them."""

    logs_after_update: ClassVar[bool]
    """Does a line of the log hold the update made with its rollout? (SB3 logs the one before.)"""

    @abstractmethod
    def check(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        """Raise `BadValue` when the algorithm's settings do not suit this kind of policy."""

    @abstractmethod
    def collect(self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback) -> bool:
        """Fill the algorithm's buffer; False when a callback stopped it."""

    @abstractmethod
    def minibatches(self, algorithm: VLAOnPolicyAlgorithm) -> Iterator[Iterable[Part]]:
        """One pass over the rollout, freshly shuffled; as many minibatches, of as many parts, on every rank."""

    @abstractmethod
    def scorer(self, algorithm: VLAOnPolicyAlgorithm) -> RolloutScorer:
        """The module that scores minibatches."""

    @abstractmethod
    def rescore(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        """Replace the rollout's log-probabilities by those of the training path."""

    @abstractmethod
    def score_reference(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        """Keep the reference policy's log-probabilities of the rollout."""

    @abstractmethod
    def values_and_returns(self, algorithm: VLAOnPolicyAlgorithm) -> tuple[Tensor, Tensor]:
        """The rollout's values and their targets, flat."""


class ChunkExperience(Experience):
    """A fixed number of decisions per slot, new episodes beginning as others end (partial resets)."""

    logs_after_update = True
    delivery: Delivery | None = None
    """Where rollouts come from when other ranks collect them; None = this rank gathers its own."""

    def check(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        if algorithm.use_sde:
            raise BadValue("use_sde (state-dependent noise) does not apply to policies of action tokens")
        wanted = algorithm.rollout_buffer_class
        if wanted is not None and not issubclass(wanted, ChunkRolloutBuffer):
            raise BadValue(
                f"rollout_buffer_class of a chunk policy must derive from ChunkRolloutBuffer, got {wanted.__name__}"
            )

    def collect(self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback) -> bool:
        algorithm.policy.set_training_mode(False)
        algorithm.chunk_buffer.reset()
        callback.on_rollout_start()
        began_at = algorithm.begin_rollout()
        source = self.delivery
        gathered = source.gather(algorithm, callback) if source else self.gather(algorithm, env, callback)
        if not algorithm.agree(gathered):
            return False
        algorithm.end_rollout(began_at)
        last_value_N = source.last_value_N if source else self.last_values(algorithm)
        with algorithm.clock.phase("advantages"):
            algorithm.credit(last_value_N)
        callback.update_locals({"rollout_buffer": algorithm.chunk_buffer})
        callback.on_rollout_end()
        return True

    def last_values(self, algorithm: VLAOnPolicyAlgorithm) -> Tensor | None:
        """Values of the observations after the last decision, `[N]`; None where nothing follows it."""
        return self._values(algorithm, algorithm._last_obs)

    def gather(self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback) -> bool:
        """Fill the buffer with this rank's decisions; False when it is to stop. Waits for no other rank."""
        buffer = algorithm.chunk_buffer
        rows = (
            staged_rows(algorithm, env, algorithm.n_steps, renew=True)
            if isinstance(env, SB3VecEnv)
            else plain_rows(algorithm, env, algorithm.n_steps)
        )
        with closing(rows):
            for number, row in enumerate(rows):
                if not self._take(algorithm, callback, number, row, buffer):
                    return False
        return True

    def _take(
        self,
        algorithm: VLAOnPolicyAlgorithm,
        callback: BaseCallback,
        number: int,
        row: Row,
        buffer: ChunkRolloutBuffer,
    ) -> bool:
        """Count a decision of every slot and keep it; False when the rollout is to stop."""
        infos, sample = row.infos, row.sample
        # An environment that does not say how much of a chunk it ran has run it all, as one step.
        counted = np.array([info.get("executed", 1) for info in infos])
        executed = np.array([info.get("executed", sample.action_BKA.shape[1]) for info in infos])
        if not algorithm.after_decision(
            callback,
            decision=number,
            executed=counted,
            infos=infos,
            dones=row.done_n,
            rewards=row.reward_n,
            new_obs=row.new_obs,
            actions=sample.action_BKA.cpu().numpy(),
        ):
            return False
        cut_off = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        # An episode lost with its simulator has not failed: its last decision is worth what was expected of it.
        lost = np.array([bool(info.get("lost", False)) for info in infos])
        truncated = cut_off & row.done_n & (algorithm.bootstrap_time_limit | lost)
        buffer.write(
            number,
            row.slots,
            Decision(
                obs=row.obs,
                record=sample.record,
                logprob_nKA=sample.logprob_BKA,
                value_n=sample.value_B,
                reward_n=row.reward_n,
                executed_n=executed,
                terminated_n=row.done_n & ~truncated,
                truncated_n=truncated,
                final_value_n=self._final_values(algorithm, infos, truncated),
                **self._per_step(algorithm, sample, infos),
            ),
        )
        algorithm._last_episode_starts = row.done_n
        return True

    def minibatches(self, algorithm: VLAOnPolicyAlgorithm) -> Iterator[Iterable[Part]]:
        for piece in self._pieces(algorithm):
            yield self._parts(algorithm, piece)

    @staticmethod
    def _pieces(algorithm: VLAOnPolicyAlgorithm) -> Iterator[Piece]:
        """This rank's pieces of one pass."""
        process_group = algorithm.process_group
        columns = Columns(num_ranks=process_group.size, rank=process_group.rank, slots=algorithm.n_envs)
        taking_TC = columns.in_slot_order(process_group.all_gather(algorithm.chunk_buffer.taking()))
        rng = np.random.default_rng([algorithm.noise_seed, algorithm._n_updates])
        return pieces(taking_TC, columns, algorithm.batch_size, rng)

    @staticmethod
    def _parts(algorithm: VLAOnPolicyAlgorithm, piece: Piece) -> Iterator[Part]:
        parts = piece.parts(algorithm.micro_batch_size)
        for number, index_B in enumerate(parts, 1):
            batch = _to_score(algorithm, index_B)
            yield Part(batch, share=piece.share(index_B), last=number == len(parts))

    def scorer(self, algorithm: VLAOnPolicyAlgorithm) -> RolloutScorer:
        return ChunkScorer(algorithm.policy, algorithm.logprob_level, algorithm.value_level)

    @torch.no_grad()
    def rescore(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        if self.delivery is not None and self.delivery.max_staleness:
            algorithm.chunk_buffer.keep_behaviour()
        # In the update's own parts, as many on every rank: a sharded policy scores nothing alone.
        for piece in self._pieces(algorithm):
            for index_B in piece.parts(algorithm.micro_batch_size):
                logprob_BKA = algorithm.learner.score(_to_score(algorithm, index_B), None)
                if len(index_B):
                    algorithm.chunk_buffer.replace_logprobs(index_B, logprob_BKA)

    @torch.no_grad()
    def score_reference(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        buffer = algorithm.chunk_buffer
        for index_B in in_parts(buffer.chosen(), algorithm.micro_batch_size or algorithm.batch_size):
            batch = _to_score(algorithm, index_B)
            buffer.write_reference(index_B, algorithm.reference.evaluate(batch.obs, batch.choice).logprob_BKA)

    def values_and_returns(self, algorithm: VLAOnPolicyAlgorithm) -> tuple[Tensor, Tensor]:
        buffer = algorithm.chunk_buffer
        valid_TN = buffer.executed_TN > 0
        if buffer.step_value_TNK is not None and buffer.step_return_TNK is not None:
            valid_TNK = buffer.executed_steps()
            return buffer.step_value_TNK[valid_TNK], buffer.step_return_TNK[valid_TNK]
        return buffer.value_TN[valid_TN], buffer.return_TN[valid_TN]

    @staticmethod
    def _per_step(
        algorithm: VLAOnPolicyAlgorithm, sample: ActionSample, infos: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """What credit per step needs besides: rewards of the steps, and values where the critic has them."""
        if algorithm.reward_level == "chunk":
            return {}
        if any("step_rewards" not in info for info in infos):
            raise BadValue(
                "reward_level='action' needs each step's reward: infos['step_rewards'], as vla_gym.make_vec gives"
            )
        chunk = sample.action_BKA.shape[1]
        return {
            "step_reward_nK": np.stack([info["step_rewards"] for info in infos]),
            "step_value_nK": step_values(sample, chunk) if algorithm.value_level == "action" else None,
        }

    def _final_values(
        self, algorithm: VLAOnPolicyAlgorithm, infos: list[dict[str, Any]], truncated: np.ndarray
    ) -> Tensor:
        """Values of the observations in which truncated episodes ended, zero elsewhere, `[N]`."""
        values_N = torch.zeros(len(infos))
        slots = np.flatnonzero(truncated)
        if len(slots):
            last = [infos[slot]["terminal_observation"] for slot in slots]
            stacked = {key: np.stack([one[key] for one in last]) for key in last[0]}
            values_N[torch.from_numpy(slots)] = self._values(algorithm, stacked)
        return values_N

    @staticmethod
    def _values(algorithm: VLAOnPolicyAlgorithm, obs: Any) -> Tensor:
        with torch.no_grad(), algorithm.clock.phase("policy"):
            return algorithm.policy.predict_values(obs).flatten().cpu()


def _to_score(algorithm: VLAOnPolicyAlgorithm, index_B: Tensor) -> Minibatch:
    """The decisions at `index_B`; the first of all where there are none, for other ranks wait until one is scored."""
    scored_B = index_B if len(index_B) else torch.zeros(1, dtype=torch.int64)
    return algorithm.chunk_buffer.minibatch(scored_B, algorithm.logprob_level, algorithm.device)
