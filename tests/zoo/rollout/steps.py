"""Steps made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vla_gym.vector.step import EnvStep
from vla_policies.types import ActionSample
from zoo.rollout.buffer import Step


def step(
    envs: Sequence[int],
    *,
    image: np.ndarray,
    token: Tensor,
    logprob: Tensor,
    value: Tensor,
    reward: Sequence[float] | np.ndarray,
    executed: Sequence[int] | np.ndarray,
    terminated: Sequence[bool] | np.ndarray | None = None,
    truncated: Sequence[bool] | np.ndarray | None = None,
) -> Step:
    """A step of the sub-environments `envs`; nothing ended unless it is said."""
    never = np.zeros(len(envs), dtype=bool)
    obs = {"image": image}
    outcome = EnvStep(
        obs={**obs, "instruction": ("go",) * len(envs)},
        reward_n=np.asarray(reward, dtype=np.float64),
        terminated_n=never if terminated is None else np.asarray(terminated),
        truncated_n=never if truncated is None else np.asarray(truncated),
        executed_n=np.asarray(executed),
        success_n=never,
        lost_n=never,
        idle_n=never,
        task_id_n=np.zeros(len(envs), dtype=np.int64),
        trial_id_n=np.zeros(len(envs), dtype=np.int64),
        start_state_n=np.full(len(envs), "", dtype=object),
        step_reward_nK=np.zeros((len(envs), 1), dtype=np.float32),
        episodes=[None] * len(envs),
    )
    sample = ActionSample(action_BKA=token.float(), logprob_BKA=logprob, value_B=value, record={"token": token})
    return Step(np.asarray(envs), obs, sample, outcome, next_obs=obs)
