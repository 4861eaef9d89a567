"""Records a policy's episodes, with its log-probabilities and its critic's values and advantages.

Shape letters: `vla_gym.specs`; here T is the simulator steps of an episode, D its decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies import VLAPolicy
from vla_policies.actions.noise import SlotNoise
from zoo.demonstrations.recorder import REWARD, Attempt, Choice, Demonstration, Observations, record
from zoo.evaluation.evaluator import observation_rows
from zoo.rollout.advantages import gae

LOGPROB, VALUE, ADVANTAGE = "vla_zoo.logprob", "vla_zoo.value", "vla_zoo.advantage"
CHUNK_STEP = "vla_zoo.chunk_step"
"""Step of its chunk that a frame is; 0 is what the policy saw when it decided."""


def roll_out(
    envs: VLAVectorEnv,
    policy: VLAPolicy,
    attempts: Sequence[Attempt],
    first: int,
    *,
    deterministic: bool,
    seed: int,
    gamma: float,
    gae_lambda: float,
    values: bool = True,
) -> list[Demonstration]:
    """Return one episode of a policy for each attempt, at most as many as environments, all at once; in their order.

    Args:
        envs: chunk 1, autoreset DISABLED; the policy's chunk is played step by step.
        policy: who acts; or one that others serve, which has `conventions` and `act`, too.
        attempts: start states.
        first: number of the first attempt among all: samples depend on the seed and their attempt's number alone.
        deterministic: the likeliest action instead of a sampled one.
        seed: of sampled actions.
        gamma: discount of the advantages from one decision to the next.
        gae_lambda: lambda of generalised advantage estimation, over decisions.
        values: whether log-probabilities, values and advantages are recorded; a served policy may not tell them.
    """
    actor = PolicyActor(policy, first, deterministic=deterministic, seed=seed, values=values)
    episodes = record(envs, actor.act, attempts, actor.end)
    if not values:
        return episodes
    return [
        replace(one, extra={**one.extra, ADVANTAGE: episode_advantages(one.extra, final, gamma, gae_lambda)})
        for one, (_, final) in zip(episodes, sorted(actor.final_value.items()), strict=True)
    ]


def episode_advantages(
    columns: Mapping[str, np.ndarray], final_value: float, gamma: float, gae_lambda: float
) -> np.ndarray:
    """Return the generalised advantage of the decision that each step of an episode belongs to, float32 `[T]`.

    A decision's reward is the sum over its steps. `columns` are the episode's. `final_value` is the value of the
    observation that it ended in, 0 where the task's own rule ended it.
    """
    decides_T = columns[CHUNK_STEP] == 0
    decision_T = np.cumsum(decides_T) - 1
    reward_D = np.bincount(decision_T, weights=columns[REWARD])
    ends_D1 = torch.zeros(len(reward_D), 1, dtype=torch.bool)
    ends_D1[-1] = True
    advantage_D1 = gae(
        torch.from_numpy(reward_D)[:, None].float(),
        torch.from_numpy(columns[VALUE][decides_T])[:, None].float(),
        terminated_TN=torch.zeros_like(ends_D1),
        truncated_TN=ends_D1,
        final_value_TN=torch.full((len(reward_D), 1), final_value),
        last_value_N=torch.zeros(1),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    advantage_T: np.ndarray = advantage_D1[:, 0].numpy()[decision_T]
    return advantage_T


class PolicyActor:
    """A policy in all environments, which decide together, every K steps."""

    def __init__(self, policy: VLAPolicy, first: int, *, deterministic: bool, seed: int, values: bool = False) -> None:
        self._policy, self._first = policy, first
        self._deterministic, self._seed, self._values = deterministic, seed, values
        self._step = 0
        self._sample: dict[int, tuple[np.ndarray, ...]] = {}
        """Environment -> actions, log-probabilities and value of its present decision."""
        self.final_value: dict[int, float] = {}
        """Environment -> value of the observation its episode ended in; 0 where the task's own rule ended it."""

    def act(self, obs: Observations, live: Sequence[int]) -> dict[int, Choice]:
        """Return the choices of the environments `live`; an `Act`."""
        decision, chunk_step = divmod(self._step, self._policy.conventions.chunk)
        self._step += 1
        if chunk_step == 0:
            noise = SlotNoise(self._seed, (0, decision), self._first + np.array(live))
            sample = self._policy.act(observation_rows(obs, live), self._deterministic, noise)
            parts = (sample.action_BKA, sample.logprob_BKA, sample.value_B.float())
            rows = zip(*(part.cpu().numpy() for part in parts), strict=True)
            self._sample = dict(zip(live, rows, strict=True))
        choices = {}
        for env in live:
            action_KA, logprob_KA, value = self._sample[env]
            extra = {CHUNK_STEP: np.array(chunk_step)}
            if self._values:
                extra |= {LOGPROB: logprob_KA[chunk_step], VALUE: value}
            choices[env] = Choice(action_A=action_KA[chunk_step], executed_A=action_KA[chunk_step], extra=extra)
        return choices

    def end(self, obs: Observations, env: int, terminated: bool) -> None:
        """Note the value of the observation that an episode ended in."""
        self.final_value[env] = 0.0
        if self._values and not terminated:
            with torch.no_grad():
                self.final_value[env] = float(self._policy.predict_values(observation_rows(obs, [env])))
