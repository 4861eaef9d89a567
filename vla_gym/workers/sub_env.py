"""`SubEnv`: the chunk loop over one simulator, with time limit, rewards and episode statistics.

Everything that must count *simulator* steps lives here, under the chunk. A sub-environment never resets itself
and renders only in `observe`.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from vla_gym.observation import ObservationLayout
from vla_gym.rewards import RewardRule
from vla_gym.simulator import Simulator
from vla_gym.specs import StartState, Task


@dataclass(frozen=True, kw_only=True)
class EpisodeStats:
    """One finished episode."""

    total_reward: float
    """Sum of the rewards paid."""
    length: int
    """Simulator steps."""
    success_once: bool
    """Whether it was solved at any step."""
    success_at_end: bool
    """Whether it was solved in the last state."""
    seconds: float
    """Wall-clock seconds from the reset's end to the last step's end."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Outcome of one command."""

    start_state: str = ""
    """Hash of the simulator state in which the episode began, after a reset or a replay; empty after a step."""
    step_rewards: tuple[float, ...] = ()
    """Reward of each simulator step really run, at most K."""
    success: bool = False
    """Whether the task was solved at any step of this decision."""
    terminated: bool = False
    """The task's own rule ended the episode."""
    truncated: bool = False
    """A time limit (or the loss of a worker) ended it."""
    lost: bool = False
    """The worker failed with the episode; nothing else here is meaningful."""
    episode: EpisodeStats | None = None
    """Statistics, on the episode's last decision only."""


LOST = Report(truncated=True, lost=True)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One thing to do with the sub-environment of one slot; its observation afterwards is rendered once."""

    slot: int
    start: StartState
    """Start of the episode: the new one for `reset` and `replay`, the present one for `step`."""
    kind: Literal["reset", "step", "replay"]
    action_TA: np.ndarray | None = field(default=None, compare=False)
    """Float32 `[K, A]` of a step, or the `[T, A]` log of a replay."""


class SubEnv:
    """Drives one simulator by decisions of up to K steps."""

    def __init__(
        self, simulator: Simulator, tasks: tuple[Task, ...], rule: RewardRule, layout: ObservationLayout
    ) -> None:
        self._simulator = simulator
        self._tasks = tasks
        self._rule = rule
        self._layout = layout
        self._running = False

    def run(self, command: Command) -> Report:
        """Do one command, rendering nothing."""
        if command.kind == "reset":
            return self.reset(command.start)
        assert command.action_TA is not None
        return self.step(command.action_TA) if command.kind == "step" else self.replay(command.start, command.action_TA)

    def reset(self, start: StartState) -> Report:
        """Begin an episode; nothing is rendered."""
        self._running = False
        start_state = self._simulator.reset(start)
        self._horizon = self._tasks[start.task_id].horizon
        self._length = 0
        self._total_reward = 0.0
        self._last_reward = 0.0
        self._success_once = False
        self._running = True
        self._began = time.perf_counter()
        return Report(start_state=start_state)

    def step(self, action_KA: np.ndarray) -> Report:
        """Run up to K steps of float32 `[K, A]`, stopping where the episode ends."""
        if not self._running:
            raise RuntimeError("the slot was stepped although its episode has ended or never began")
        rewards: list[float] = []
        success = solved = terminated = truncated = False
        for action_A in action_KA:
            outcome = self._simulator.step(action_A)
            reward = float(outcome.reward)  # NumPy's scalars do not go into a message
            rewards.append(self._rule.pay(reward, self._last_reward))
            self._last_reward = reward
            self._length += 1
            solved = bool(outcome.success)
            success = success or solved
            terminated = bool(outcome.terminated)
            truncated = not terminated and (bool(outcome.truncated) or self._length >= self._horizon)
            if terminated or truncated:
                break
        self._total_reward += sum(rewards)
        self._success_once = self._success_once or success
        self._running = not (terminated or truncated)
        episode = None
        if not self._running:
            episode = EpisodeStats(
                total_reward=self._total_reward,
                length=self._length,
                success_once=self._success_once,
                success_at_end=solved,
                seconds=time.perf_counter() - self._began,
            )
        return Report(
            step_rewards=tuple(rewards),
            success=success,
            terminated=terminated,
            truncated=truncated,
            episode=episode,
        )

    def replay(self, start: StartState, action_TA: np.ndarray) -> Report:
        """Reach again the state after `start` and the steps `[T, A]`, rendering nothing in between."""
        began = self.reset(start)
        if not len(action_TA):
            return began
        return dataclasses.replace(self.step(action_TA), start_state=began.start_state)

    def observe(self) -> dict[str, np.ndarray]:
        """Render the present state, once; the keys are those of the layout."""
        observation = dict(self._simulator.observe())
        if not self._layout.state_dim:
            observation.pop("state", None)  # the simulator may give it unasked
        if self._layout.privileged_dim:
            simulator: Any = self._simulator  # only benchmarks that declare a `privileged_dim` have it
            observation["privileged"] = simulator.privileged()
        return observation

    def close(self) -> None:
        """Free the simulator."""
        self._running = False
        self._simulator.close()
