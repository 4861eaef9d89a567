"""Experience of plain Stable-Baselines3 policies: its own rollout loop, buffer and conventions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from zoo.algorithms.scorers import PlainScorer, RolloutScorer
from zoo.rollout.collector import Experience
from zoo.rollout.types import Minibatch, Part

if TYPE_CHECKING:
    from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm


PLAIN_REFUSES = {
    "recompute_logprobs": False,
    "kl_coef": 0.0,
    "reward_level": "chunk",
    "value_level": "chunk",
    "bootstrap_time_limit": True,
}
"""Settings that a plain policy has no use for -> the value that leaves them off."""


class PlainExperience(Experience):
    """Stable-Baselines3's own way, so that plain policies train exactly as they do there."""

    logs_after_update = False

    def check(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        if algorithm.process_group.size > 1:
            raise BadValue(
                f"{algorithm.policy_class.__name__} is trained in one process; several are for policies with `act` and "
                "`evaluate`, such as 'VLAPolicy'"
            )
        for name, off in PLAIN_REFUSES.items():
            if getattr(algorithm, name) != off:
                raise BadValue(
                    f"{name} is for policies with `act` and `evaluate`, such as 'VLAPolicy'; leave it at {off!r}"
                )

    def collect(self, algorithm: VLAOnPolicyAlgorithm, env: VecEnv, callback: BaseCallback) -> bool:
        return OnPolicyAlgorithm.collect_rollouts(
            algorithm, env, callback, algorithm.rollout_buffer, algorithm.n_steps
        )

    def minibatches(self, algorithm: VLAOnPolicyAlgorithm) -> Iterator[Iterable[Part]]:
        """Advantages are normalised over each minibatch, as in SB3."""
        discrete = isinstance(algorithm.action_space, spaces.Discrete)
        for data in algorithm.rollout_buffer.get(algorithm.batch_size):
            advantage_B = data.advantages
            if algorithm.normalize_advantage and len(advantage_B) > 1:
                advantage_B = (advantage_B - advantage_B.mean()) / (advantage_B.std() + 1e-8)
            batch = Minibatch(
                obs=data.observations,
                choice=data.actions.long().flatten() if discrete else data.actions,
                executed_B=None,
                old_logprob_BL=data.old_log_prob[:, None],
                advantage_BL=advantage_B[:, None],
                return_BU=data.returns[:, None],
                old_value_BU=data.old_values[:, None],
                mask_BL=None,
                weight_BL=None,
            )
            yield batch.parts(algorithm.micro_batch_size)

    def scorer(self, algorithm: VLAOnPolicyAlgorithm) -> RolloutScorer:
        return PlainScorer(algorithm.policy)

    def rescore(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        """Nothing: it is refused by `check`, and mixed precision is met as Stable-Baselines3 would."""

    def score_reference(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        raise AssertionError("refused by `check`")

    def values_and_returns(self, algorithm: VLAOnPolicyAlgorithm) -> tuple[Tensor, Tensor]:
        buffer = algorithm.rollout_buffer
        return torch.from_numpy(buffer.values).flatten(), torch.from_numpy(buffer.returns).flatten()
