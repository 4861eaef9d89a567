"""Records a policy's episodes, with its log-probabilities and its critic's values and advantages.

Shape letters: `vla_gym.specs`; here T is the simulator steps of an episode, D its decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies.actions.noise import Noise, SlotNoise
from vla_policies.conventions import Conventions
from vla_policies.types import ActionSample
from zoo.demonstrations.recorder import REWARD, Actor, Attempt, Choice, Demonstration, Interrupted, record
from zoo.evaluation.evaluator import observation_rows
from zoo.rollout.advantages import gae

LOGPROB, VALUE, ADVANTAGE = "vla_zoo.logprob", "vla_zoo.value", "vla_zoo.advantage"
CHUNK_STEP = "vla_zoo.chunk_step"
"""Step of its chunk that a frame is; 0 is what the policy saw when it decided."""


class ActingPolicy(Protocol):
    """The part of `VLAPolicy` that recording needs."""

    @property
    def conventions(self) -> Conventions:
        """Observations and actions of the policy."""

    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = ...) -> ActionSample:
        """Decide for B observations."""

    def predict_values(self, obs: Any) -> Tensor:
        """State values `[B, 1]`."""


@dataclass(frozen=True, kw_only=True)
class RolloutRules:
    """How a policy acts, and how its critic is read."""

    deterministic: bool
    """The likeliest action instead of a sampled one."""
    seed: int
    """Of sampled actions."""
    gamma: float
    """Discount from one decision to the next."""
    gae_lambda: float
    """Lambda of generalised advantage estimation, over decisions."""
    values: bool = True
    """Whether log-probabilities, values and advantages are recorded; servers do not send them."""


def roll_out(
    envs: VLAVectorEnv, policy: ActingPolicy, attempts: Sequence[Attempt], first: int, rules: RolloutRules
) -> list[Demonstration]:
    """One episode of a policy for each attempt, at most as many as environments, all at once; in their order.

    `envs`: chunk 1, autoreset DISABLED; the policy's chunk is played step by step. `first` is the number of the first
    attempt among all: an episode's samples depend on the seed and its attempt's number alone.
    """
    actor = PolicyActor(policy, first, rules)

    def complete(episodes: Sequence[Demonstration]) -> list[Demonstration]:
        if not rules.values:
            return list(episodes)
        return [
            replace(episode, extra={**episode.extra, ADVANTAGE: _advantage_T(episode, actor.final_value[env], rules)})
            for env, episode in enumerate(episodes)
        ]

    try:
        return complete(record(envs, actor, attempts))
    except Interrupted as stop:
        raise Interrupted(stop.cause, complete(stop.episodes)) from stop.cause


def episode_advantages(
    reward_T: np.ndarray,
    value_T: np.ndarray,
    chunk_step_T: np.ndarray,
    final_value: float,
    *,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """Generalised advantage of the decision that each step belongs to, float32 `[T]`.

    One episode: a decision's reward is the sum over its steps. `final_value` is the value of the observation that the
    episode ended in, 0 where the task's own rule ended it.
    """
    decides_T = chunk_step_T == 0
    decision_T = np.cumsum(decides_T) - 1
    reward_D = np.bincount(decision_T, weights=reward_T)
    count = len(reward_D)
    ends_D1 = torch.zeros(count, 1, dtype=torch.bool)
    ends_D1[-1] = True
    advantage_D1 = gae(
        torch.from_numpy(reward_D)[:, None].float(),
        torch.from_numpy(value_T[decides_T])[:, None].float(),
        terminated_TN=torch.zeros_like(ends_D1),
        truncated_TN=ends_D1,
        final_value_TN=torch.full((count, 1), final_value),
        last_value_N=torch.zeros(1),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    advantage_T: np.ndarray = advantage_D1[:, 0].numpy()[decision_T]
    return advantage_T


def _advantage_T(episode: Demonstration, final_value: float, rules: RolloutRules) -> np.ndarray:
    return episode_advantages(
        episode.extra[REWARD],
        episode.extra[VALUE],
        episode.extra[CHUNK_STEP],
        final_value,
        gamma=rules.gamma,
        gae_lambda=rules.gae_lambda,
    )


class PolicyActor(Actor):
    """A policy in all environments, which decide together, every K steps."""

    def __init__(self, policy: ActingPolicy, first: int, rules: RolloutRules) -> None:
        self._policy, self._first, self._rules = policy, first, rules
        self._step, self._decisions = 0, 0
        self._sample: dict[int, dict[str, np.ndarray]] = {}
        self.final_value: dict[int, float] = {}
        """Environment -> value of the observation its episode ended in; 0 where the task's own rule ended it."""

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> dict[int, Choice]:
        chunk_step = self._step % self._policy.conventions.chunk
        if chunk_step == 0:
            self._decide(obs, live)
        self._step += 1
        choices = {}
        for env in live:
            sample = self._sample[env]
            action_A = sample["action_KA"][chunk_step]
            extra: dict[str, Any] = {CHUNK_STEP: np.int64(chunk_step)}
            if self._rules.values:
                extra |= {LOGPROB: sample["logprob_KA"][chunk_step], VALUE: sample["value"]}
            choices[env] = Choice(action_A=action_A, executed_A=action_A, extra=extra)
        return choices

    def ended(self, obs: Mapping[str, Any], env: int, *, terminated: bool) -> None:
        self.final_value[env] = 0.0
        if self._rules.values and not terminated:
            with torch.no_grad():
                self.final_value[env] = float(self._policy.predict_values(observation_rows(obs, [env])))

    def _decide(self, obs: Mapping[str, Any], live: Sequence[int]) -> None:
        noise = SlotNoise(self._rules.seed, (0, self._decisions), self._first + np.array(live))
        self._decisions += 1
        sample = self._policy.act(observation_rows(obs, live), self._rules.deterministic, noise)
        action_BKA, logprob_BKA = sample.action_BKA.cpu().numpy(), sample.logprob_BKA.cpu().numpy()
        value_B = sample.value_B.float().cpu().numpy()
        self._sample = {
            env: {"action_KA": action_BKA[row], "logprob_KA": logprob_BKA[row], "value": value_B[row]}
            for row, env in enumerate(live)
        }
