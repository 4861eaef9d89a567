"""Steps made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vla_policies.types import ActionSample
from zoo.rollout.types import Step


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
    return Step(
        env_n=np.asarray(envs),
        obs=obs,
        sample=ActionSample(action_BKA=token.float(), logprob_BKA=logprob, value_B=value, record={"token": token}),
        next_obs=obs,
        reward_n=np.asarray(reward, dtype=np.float32),
        terminated_n=never if terminated is None else np.asarray(terminated),
        truncated_n=never if truncated is None else np.asarray(truncated),
        executed_n=np.asarray(executed),
        counted_n=np.asarray(executed),
        success_n=never,
        lost_n=never,
        task_id_n=np.full(len(envs), -1),
        start_state_n=[""] * len(envs),
        step_reward_nK=None,
        infos=[{}] * len(envs),
    )
