"""The loop between policy and environments: act, step, begin new episodes.

Environments of `vla_gym` are stepped in stages (`VLAVectorEnv.stages`, one by default): while the workers simulate
one stage the policy decides for the next. A step is yielded when all its stages are through, so callers see the same
steps, in the same order, however many stages there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv

from vla_gym.observation import encode_instructions
from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.stage import Stage
from vla_gym.vector.step import EnvStep
from vla_policies.types import ActionSample
from zoo.rollout.stats import PhaseClock
from zoo.rollout.types import Observation, Step

Act = Callable[[Observation, int, np.ndarray], ActionSample]
"""`(observation, number of the decision, indices of the sub-environments) -> decision`."""


class EnvLoop(Protocol):
    """Steps environments with a policy; holds their present observation."""

    obs: Observation

    def steps(self, num_decisions: int, *, first_decision: int = 0, renew: bool = True) -> Generator[Step, None, None]:
        """At most `num_decisions` decisions of every sub-environment, numbered from `first_decision`.

        With `renew` a new episode begins where one ended; else its sub-environment stops, and the steps end with the
        last episode. However this ends, no step is under way, and `obs` is the sub-environments' present one.
        """


def env_loop(env: VecEnv, obs: Observation, act: Act, clock: PhaseClock) -> EnvLoop:
    """The loop for `env`: in stages for `vla_gym`'s, step by step for any other vector environment."""
    if isinstance(env, SB3VecEnv):
        return StagedEnvLoop(env, obs, act, clock)
    return PlainEnvLoop(env, obs, act, clock)


@dataclass
class PlainEnvLoop:
    """Any Stable-Baselines3 vector environment; reads the arrays of a `Step` from its `infos`."""

    env: VecEnv
    obs: Observation
    act: Act
    clock: PhaseClock

    def steps(self, num_decisions: int, *, first_decision: int = 0, renew: bool = True) -> Generator[Step, None, None]:
        """See `EnvLoop.steps`; episodes always begin anew."""
        env_N = np.arange(self.env.num_envs)
        shape = self.env.action_space.shape or ()
        for decision in range(first_decision, first_decision + num_decisions):
            obs = self.obs
            with self.clock.phase("policy"):
                sample = self.act(obs, decision, env_N)
                actions = sample.action_BKA.cpu().numpy()
            with self.clock.phase("env"):
                next_obs, reward_N, done_N, infos = self.env.step(actions.reshape(self.env.num_envs, *shape))
            assert isinstance(next_obs, dict)
            self.obs = next_obs
            truncated_N = done_N & _from_infos(infos, "TimeLimit.truncated", False, bool)
            step_reward_nK = None
            if "step_rewards" in infos[0]:
                step_reward_nK = np.stack([info["step_rewards"] for info in infos])
            yield Step(
                env_n=env_N,
                obs=obs,
                sample=sample,
                next_obs=next_obs,
                reward_n=reward_N,
                terminated_n=done_N & ~truncated_N,
                truncated_n=truncated_N,
                # Without `executed` in its infos an environment has run the whole chunk, as one step.
                executed_n=_from_infos(infos, "executed", sample.action_BKA.shape[1], np.int64),
                counted_n=_from_infos(infos, "executed", 1, np.int64),
                success_n=_from_infos(infos, "success", False, bool),
                lost_n=_from_infos(infos, "lost", False, bool),
                task_id_n=_from_infos(infos, "task_id", -1, np.int64),
                start_state_n=[str(info.get("start_state", "")) for info in infos],
                step_reward_nK=step_reward_nK,
                infos=infos,
            )


def _from_infos(infos: Sequence[Mapping[str, Any]], key: str, default: Any, dtype: type) -> np.ndarray:
    return np.array([info.get(key, default) for info in infos], dtype=dtype)


class StagedEnvLoop:
    """Environments of `vla_gym`, in stages."""

    def __init__(self, env: SB3VecEnv, obs: Observation, act: Act, clock: PhaseClock) -> None:
        self.obs = obs
        self._env = env
        self._act = act
        self._clock = clock

    def steps(self, num_decisions: int, *, first_decision: int = 0, renew: bool = True) -> Generator[Step, None, None]:
        """See `EnvLoop.steps`."""
        stages = [
            _StageLoop(
                self._env,
                stage,
                {key: value[stage.part] for key, value in self.obs.items()},
                self._act,
                self._clock,
                renew=renew,
            )
            for stage in self._env.envs.stages
        ]
        for stage in stages:
            stage.decide_until(first_decision, first_decision + num_decisions)
        try:
            while True:
                while any(stage.pending and not stage.steps for stage in stages):
                    for stage in stages:
                        stage.turn()
                ready = [stage.steps.popleft() for stage in stages if stage.steps]
                if not ready:
                    return
                yield _joined(ready)
        finally:
            for stage in stages:
                stage.decide_until(0, 0)
            while not self._env.envs.closed and any(stage.pending for stage in stages):
                for stage in stages:
                    stage.turn()
            self.obs = _joined_obs([stage.obs for stage in stages])


@dataclass(frozen=True)
class _Decision:
    """A decision under way."""

    env_n: np.ndarray
    obs: Observation
    sample: ActionSample


class _StageLoop:
    """One stage during a rollout. Each turn receives from the workers once and then sends once."""

    def __init__(
        self,
        env: SB3VecEnv,
        stage: Stage,
        obs: Observation,
        act: Act,
        clock: PhaseClock,
        *,
        renew: bool,
    ) -> None:
        self.obs = obs
        """The stage's present observation."""
        self.steps: deque[Step] = deque()
        """Finished steps that are not yet yielded."""
        self._env = env
        self._stage = stage
        self._act = act
        self._clock = clock
        self._renew = renew
        self._next, self._end = 0, 0
        self._decision: _Decision | None = None
        self._before_reset: Step | None = None

    @property
    def pending(self) -> bool:
        """Whether workers simulate this stage."""
        return self._stage.pending

    def decide_until(self, next_decision: int, end: int) -> None:
        """Take decision number `next_decision` now, if it is below `end`, and the others in turn."""
        self._next, self._end = next_decision, end
        if not self.pending:
            self._decide()

    def turn(self) -> None:
        """Wait for the workers, then begin new episodes or decide again."""
        if not self.pending:
            return
        with self._clock.phase("env"):
            outcome = self._stage.receive()
        self.obs = encode_instructions(outcome.obs)
        if self._before_reset is None:
            step = self._step(outcome)
            if self._renew and step.done_n.any():
                self._before_reset = step
                self._stage.send_reset(outcome.done_n)
                return
        else:
            step, self._before_reset = self._before_reset, None
        self.steps.append(replace(step, next_obs=self._of(step.env_n)))
        self._decide()

    def _decide(self) -> None:
        row_n = np.flatnonzero(self._stage.running_n)
        if self._next >= self._end or not len(row_n):
            return
        env_n = row_n + self._stage.part.start
        obs = self._of(env_n)
        with self._clock.phase("policy"):
            sample = self._act(obs, self._next, env_n)
            action_nKA = sample.action_BKA.cpu().numpy()
        actions = np.zeros((len(self._stage.running_n), *action_nKA.shape[1:]), dtype=np.float32)
        actions[row_n] = action_nKA
        self._next += 1
        with self._clock.phase("env"):
            self._stage.send_step(actions)
        self._decision = _Decision(env_n, obs, sample)

    def _step(self, outcome: EnvStep) -> Step:
        """The decision under way with its outcome."""
        assert self._decision is not None
        decision = self._decision
        row_n = decision.env_n - self._stage.part.start
        executed_n = outcome.executed_n[row_n]
        return Step(
            env_n=decision.env_n,
            obs=decision.obs,
            sample=decision.sample,
            next_obs=decision.obs,
            reward_n=outcome.reward_n[row_n].astype(np.float32),
            terminated_n=outcome.terminated_n[row_n],
            truncated_n=outcome.truncated_n[row_n] & ~outcome.terminated_n[row_n],
            executed_n=executed_n,
            counted_n=executed_n,
            success_n=outcome.success_n[row_n],
            lost_n=outcome.lost_n[row_n],
            task_id_n=outcome.task_id_n[row_n],
            start_state_n=[outcome.start_state_n[row] for row in row_n],
            step_reward_nK=outcome.step_reward_nK[row_n],
            infos=self._env.step_infos(outcome.of(row_n)),
        )

    def _of(self, env_n: np.ndarray) -> Observation:
        """The present observation of some of the stage's sub-environments."""
        if len(env_n) == len(self._stage.running_n):
            return self.obs
        return {key: value[env_n - self._stage.part.start] for key, value in self.obs.items()}


def _joined(steps: Sequence[Step]) -> Step:
    """Steps of several stages as one."""
    if len(steps) == 1:
        return steps[0]

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(step, name) for step in steps])

    arrays = ("env_n", "reward_n", "terminated_n", "truncated_n", "executed_n", "counted_n", "success_n")
    return Step(
        **{name: joined(name) for name in (*arrays, "lost_n", "task_id_n", "step_reward_nK")},
        obs=_joined_obs([step.obs for step in steps]),
        sample=joined_samples([step.sample for step in steps]),
        next_obs=_joined_obs([step.next_obs for step in steps]),
        start_state_n=[state for step in steps for state in step.start_state_n],
        infos=[info for step in steps for info in step.infos],
    )


def _joined_obs(observations: Sequence[Observation]) -> Observation:
    first = observations[0]
    if len(observations) == 1:
        return first
    return {key: np.concatenate([obs[key] for obs in observations]) for key in first}


def joined_samples(samples: Sequence[ActionSample]) -> ActionSample:
    """Decisions for several batches as those for one."""
    step_values = [sample.value_BK for sample in samples if sample.value_BK is not None]
    return ActionSample(
        action_BKA=torch.cat([sample.action_BKA for sample in samples]),
        logprob_BKA=torch.cat([sample.logprob_BKA for sample in samples]),
        value_B=torch.cat([sample.value_B for sample in samples]),
        record={key: torch.cat([sample.record[key] for sample in samples]) for key in samples[0].record},
        value_BK=torch.cat(step_values) if step_values else None,
    )
