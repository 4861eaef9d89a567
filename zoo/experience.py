"""How experience is gathered and scored: one strategy per kind of policy, chosen once.

Experience
├── PlainExperience   any Stable-Baselines3 policy, see `zoo.plain_experience`
└── ChunkExperience   policies with `act` and `evaluate`: decisions of K steps, kept token by token

The algorithm's update is the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.types import ActionSample, Evaluation
from zoo.aggregation import CreditLevel, LogprobLevel, to_level
from zoo.buffer import ChunkRolloutBuffer, Decision, in_parts
from zoo.learner import Scorer
from zoo.records import Episode, Minibatch, Scored

if TYPE_CHECKING:
    from zoo.algorithm import VLAOnPolicyAlgorithm


@runtime_checkable
class ChunkPolicy(Protocol):
    """What tells a chunk policy from a plain one."""

    def act(self, obs: Mapping[str, Any], deterministic: bool = False) -> ActionSample:
        """Decide."""

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
    def minibatches(self, algorithm: VLAOnPolicyAlgorithm) -> Iterator[Minibatch]:
        """One pass over the rollout, freshly shuffled."""

    @abstractmethod
    def scorer(self, algorithm: VLAOnPolicyAlgorithm) -> Scorer:
        """The module that scores minibatches."""

    @abstractmethod
    def rescore(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        """Replace the rollout's log-probabilities by those of the training path."""

    @abstractmethod
    def score_reference(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        """Keep the reference policy's log-probabilities of the rollout."""

    @abstractmethod
    def values_and_returns(self, algorithm: VLAOnPolicyAlgorithm) -> tuple[np.ndarray, np.ndarray]:
        """The rollout's values and their targets, flat."""


class ChunkScorer(Scorer):
    """Scores records at one log-probability level and one value level."""

    def __init__(
        self, policy: torch.nn.Module, level: LogprobLevel, value_level: CreditLevel = "chunk"
    ) -> None:
        super().__init__(policy)
        self.level = level
        self.value_level = value_level

    def forward(self, batch: Minibatch) -> Scored:
        assert batch.executed_B is not None
        result: Evaluation = self.policy.evaluate(batch.obs, batch.choice)
        logprob_BL, _ = to_level(result.logprob_BKA, batch.executed_B, self.level)
        entropy_BL, _ = to_level(result.entropy_BKA, batch.executed_B, self.level)
        token_logprob_BW = None
        if batch.ref_logprob_BW is not None:
            token_logprob_BW, _ = to_level(result.logprob_BKA, batch.executed_B, "token")
        value_BU = result.value_B[:, None]
        if self.value_level == "action":
            value_BU = step_values(result, result.logprob_BKA.shape[1])
        return Scored(logprob_BL, entropy_BL, value_BU, token_logprob_BW)


STEP_VALUES_LACKING = (
    "value_level='action' needs a critic with an output for each step of the chunk, which this policy lacks. "
    "OpenVLA-OFT has one with policy_kwargs backbone_kwargs value_outputs: <chunk>; else set value_level='chunk'"
)


def step_values(result: ActionSample | Evaluation, chunk: int) -> Tensor:
    """Values of every step of the chunk, `[B, K]`; of a chunk of one step that is the state's value."""
    if result.value_BK is not None:
        return result.value_BK
    if chunk == 1:
        return result.value_B[:, None]
    raise BadValue(f"{STEP_VALUES_LACKING} (chunk {chunk})")


class ChunkExperience(Experience):
    """A fixed number of decisions per slot, new episodes beginning as others end (partial resets)."""

    logs_after_update = True

    def check(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        if algorithm.use_sde:
            raise BadValue("use_sde (state-dependent noise) does not apply to policies of action tokens")
        wanted = algorithm.rollout_buffer_class
        if wanted is not None and not issubclass(wanted, ChunkRolloutBuffer):
            raise BadValue(
                f"rollout_buffer_class of a chunk policy must derive from ChunkRolloutBuffer, got {wanted.__name__}"
            )

    def collect(self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback) -> bool:
        policy: Any = algorithm.policy
        buffer = algorithm.chunk_buffer
        columns = np.arange(env.num_envs)
        shape = env.action_space.shape or ()
        policy.set_training_mode(False)
        buffer.reset()
        callback.on_rollout_start()
        for row in range(algorithm.n_steps):
            obs: Any = algorithm._last_obs
            with algorithm.clock.phase("policy"):
                sample: ActionSample = policy.act(obs)
                actions = sample.action_BKA.cpu().numpy()
            with algorithm.clock.phase("env"):
                new_obs, rewards, dones, infos = env.step(actions.reshape(env.num_envs, *shape))
            # An environment that does not say how much of a chunk it ran has run it all, as one step.
            counted = np.array([info.get("executed", 1) for info in infos])
            executed = np.array([info.get("executed", actions.shape[1]) for info in infos])
            if not algorithm.after_decision(
                callback,
                executed=counted,
                infos=infos,
                dones=dones,
                rewards=rewards,
                new_obs=new_obs,
                actions=actions,
            ):
                return False
            cut_off = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
            truncated = cut_off & dones & algorithm.bootstrap_time_limit
            buffer.write(
                row,
                columns,
                Decision(
                    obs=obs,
                    record=sample.record,
                    logprob_nKA=sample.logprob_BKA,
                    value_n=sample.value_B,
                    reward_n=rewards,
                    executed_n=executed,
                    terminated_n=dones & ~truncated,
                    truncated_n=truncated,
                    final_value_n=self._final_values(algorithm, infos, truncated),
                    **self._per_step(algorithm, sample, infos),
                ),
            )
            algorithm._last_obs, algorithm._last_episode_starts = new_obs, dones  # type: ignore[assignment]
        last_value_N = self._values(algorithm, algorithm._last_obs)
        with algorithm.clock.phase("advantages"):
            algorithm.credit(last_value_N)
        callback.update_locals({"rollout_buffer": buffer})
        callback.on_rollout_end()
        return True

    def minibatches(self, algorithm: VLAOnPolicyAlgorithm) -> Iterator[Minibatch]:
        return algorithm.chunk_buffer.minibatches(
            algorithm.batch_size, algorithm.logprob_level, algorithm.device
        )

    def scorer(self, algorithm: VLAOnPolicyAlgorithm) -> Scorer:
        return ChunkScorer(algorithm.policy, algorithm.logprob_level, algorithm.value_level)

    def rescore(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        policy: Any = algorithm.policy
        self._score_again(algorithm, policy.evaluate, algorithm.chunk_buffer.replace_logprobs)

    def score_reference(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        self._score_again(algorithm, algorithm.reference.evaluate, algorithm.chunk_buffer.write_reference)

    @staticmethod
    def _score_again(
        algorithm: VLAOnPolicyAlgorithm,
        evaluate: Callable[[Any, Any], Evaluation],
        write: Callable[[Tensor, Tensor], None],
    ) -> None:
        """Score the rollout, in the update's own portions, without gradients."""
        buffer = algorithm.chunk_buffer
        for index_B in in_parts(buffer.chosen(), algorithm.micro_batch_size or algorithm.batch_size):
            batch = buffer.minibatch(index_B, algorithm.logprob_level, algorithm.device)
            with torch.no_grad():
                write(index_B, evaluate(batch.obs, batch.choice).logprob_BKA)

    def values_and_returns(self, algorithm: VLAOnPolicyAlgorithm) -> tuple[np.ndarray, np.ndarray]:
        buffer = algorithm.chunk_buffer
        valid_TN = buffer.executed_TN > 0
        if buffer.step_value_TNK is not None and buffer.step_return_TNK is not None:
            valid_TNK = buffer.executed_steps()
            return buffer.step_value_TNK[valid_TNK].numpy(), buffer.step_return_TNK[valid_TNK].numpy()
        return buffer.value_TN[valid_TN].numpy(), buffer.return_TN[valid_TN].numpy()

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


def finished_episodes(infos: list[dict[str, Any]], dones: np.ndarray) -> list[Episode]:
    """Episodes that ended with this decision, those lost with a worker excepted."""
    return [
        Episode.from_info(info["episode"])
        for info, done in zip(infos, dones, strict=True)
        if done and "success_once" in info.get("episode", {}) and not info.get("lost", False)
    ]
