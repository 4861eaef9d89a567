"""The loop between policy and environments: act, step, begin new episodes.

Environments are stepped in stages (`VLAVectorEnv.stages`, one by default): while the workers simulate one stage the
policy decides for the next. A step is yielded when all its stages are through, so callers see the same steps, in the
same order, however many stages there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from stable_baselines3.common.vec_env import VecEnvWrapper

from vla_gym import make_vec
from vla_gym.errors import BadValue
from vla_gym.observation import encode_instructions
from vla_gym.single_env import VLAEnv
from vla_gym.vector.sb3 import SB3VecEnv, wrapped_view
from vla_gym.vector.stage import Stage
from vla_gym.vector.step import EnvStep, joined_steps
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies.types import ActionSample
from zoo.rollout.buffer import Observation, Step
from zoo.rollout.stats import PhaseClock

Act = Callable[[Observation, int, np.ndarray], ActionSample]
"""`(observation, number of the decision, indices of the sub-environments) -> decision`."""


def sb3_view(env: object) -> SB3VecEnv:
    """Return the Stable-Baselines3 view of a `VLAVectorEnv`, an id, or a result of `gym.make("vla_gym/...")`.

    Vector wrappers around it, Gymnasium's or Stable-Baselines3's, are stepped through; of the latter only the rewards
    count. Raises `BadValue` for any other environment, and for wrappers that change the spaces.
    """
    if isinstance(env, str):
        env = gym.make(env) if env in gym.registry else make_vec(env)
    while isinstance(env, OrderEnforcing | PassiveEnvChecker):
        env = env.env
    if isinstance(env, VLAEnv):
        env = env.envs
    if isinstance(env, VLAVectorEnv):
        env = env.as_sb3()
    if isinstance(env, VectorWrapper | VecEnvWrapper):
        env = wrapped_view(env) or env
    if not isinstance(env, SB3VecEnv):
        raise BadValue(
            f"env must be one of vla_gym.make_vec(...), perhaps within vector wrappers, got {type(env).__name__}; "
            "stable_baselines3.PPO steps any other environment"
        )
    return env


class EnvLoop:
    """Steps environments with a policy; holds their present observation."""

    def __init__(self, env: SB3VecEnv, obs: Observation, act: Act, clock: PhaseClock) -> None:
        self.obs = obs
        self._env = env
        self._act = act
        self._clock = clock

    def steps(self, num_decisions: int, *, first_decision: int = 0, renew: bool = True) -> Generator[Step, None, None]:
        """Yield at most `num_decisions` decisions of every sub-environment, numbered from `first_decision`.

        With `renew` a new episode begins where one ended; else its sub-environment stops, and the steps end with the
        last episode. However this ends, no step is under way, and `obs` is the sub-environments' present one.
        """
        decisions = range(first_decision, first_decision + num_decisions)
        wrapped = self._env.wrapper is not None
        stages: Sequence[Stage | WrappedStage] = [WrappedStage(self._env)] if wrapped else self._env.envs.stages
        loops = [
            _StageLoop(stage, {key: value[stage.part] for key, value in self.obs.items()}, self._act, self._clock)
            for stage in stages
        ]
        try:
            for loop in loops:
                loop.begin(decisions, renew=renew)
            while True:
                while any(loop.stage.pending and not loop.steps for loop in loops):
                    for loop in loops:
                        loop.turn()
                ready = [loop.steps.popleft() for loop in loops if loop.steps]
                if not ready:
                    return
                yield _joined(ready)
        finally:
            for loop in loops:
                loop.stopped = True
            while not self._env.envs.closed and sum(loop.turn() for loop in loops):
                pass
            self.obs = _joined_obs([loop.obs for loop in loops])


class WrappedStage:
    """All environments of a view with wrappers, which step together, when they are received; see `Stage`."""

    def __init__(self, env: SB3VecEnv) -> None:
        self.part = slice(0, env.num_envs)
        self._env = env
        self._request: Callable[[], EnvStep] | None = None

    @property
    def pending(self) -> bool:
        return self._request is not None

    @property
    def running_n(self) -> np.ndarray:
        return ~(self._env.envs.finished | self._env.envs.idle)

    def send_step(self, actions: np.ndarray) -> None:
        self._request = partial(self._env.step_envs, actions)

    def send_reset(self, mask_n: np.ndarray) -> None:
        self._request = partial(self._env.reset_envs, options={"reset_mask": mask_n})

    def receive(self) -> EnvStep:
        assert self._request is not None, "receive() without send_step() or send_reset()"
        request, self._request = self._request, None
        return request()


class _StageLoop:
    """One stage during a rollout. Each turn receives from the workers once and then sends once."""

    def __init__(self, stage: Stage | WrappedStage, obs: Observation, act: Act, clock: PhaseClock) -> None:
        self.stage = stage
        self.obs = obs
        """The stage's present observation."""
        self.steps: deque[Step] = deque()
        """Finished steps that are not yet yielded."""
        self.stopped = False
        """Whether no further decision is taken."""
        self._act = act
        self._clock = clock
        self._turns: Iterator[bool] = iter(())

    def begin(self, decisions: range, *, renew: bool) -> None:
        """Take the first of the decisions now; the others follow in turn."""
        self._turns = self._run(decisions, renew=renew)
        self.turn()

    def turn(self) -> bool:
        """Wait for the workers, then begin new episodes or decide again; whether workers simulate the stage."""
        return next(self._turns, False)

    def _run(self, decisions: range, *, renew: bool) -> Iterator[bool]:
        for decision in decisions:
            row_n = np.flatnonzero(self.stage.running_n)
            if self.stopped or not len(row_n):
                return
            env_n = row_n + self.stage.part.start
            obs = self._of(row_n)
            with self._clock.phase("policy"):
                sample = self._act(obs, decision, env_n)
                action_nKA = sample.action_BKA.cpu().numpy()
            actions = np.zeros((len(self.stage.running_n), *action_nKA.shape[1:]), dtype=np.float32)
            actions[row_n] = action_nKA
            with self._clock.phase("env"):
                self.stage.send_step(actions)
            yield True
            received = self._receive()
            outcome = received.of(row_n)
            if renew and outcome.done_n.any():
                self.stage.send_reset(received.done_n)
                yield True
                self._receive()
            self.steps.append(Step(env_n, obs, sample, outcome, next_obs=self._of(row_n)))

    def _receive(self) -> EnvStep:
        with self._clock.phase("env"):
            received = self.stage.receive()
        self.obs = encode_instructions(received.obs)
        return received

    def _of(self, row_n: np.ndarray) -> Observation:
        if len(row_n) == len(self.stage.running_n):
            return self.obs
        return {key: value[row_n] for key, value in self.obs.items()}


def _joined(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    return Step(
        env_n=np.concatenate([step.env_n for step in steps]),
        obs=_joined_obs([step.obs for step in steps]),
        sample=joined_samples([step.sample for step in steps]),
        outcome=joined_steps([step.outcome for step in steps]),
        next_obs=_joined_obs([step.next_obs for step in steps]),
    )


def _joined_obs(observations: Sequence[Observation]) -> Observation:
    first = observations[0]
    if len(observations) == 1:
        return first
    return {key: np.concatenate([obs[key] for obs in observations]) for key in first}


def joined_samples(samples: Sequence[ActionSample]) -> ActionSample:
    """Return decisions for several batches as those for one."""
    step_values = [sample.value_BK for sample in samples if sample.value_BK is not None]
    return ActionSample(
        action_BKA=torch.cat([sample.action_BKA for sample in samples]),
        logprob_BKA=torch.cat([sample.logprob_BKA for sample in samples]),
        value_B=torch.cat([sample.value_B for sample in samples]),
        record={key: torch.cat([sample.record[key] for sample in samples]) for key in samples[0].record},
        value_BK=torch.cat(step_values) if step_values else None,
    )
