"""One slot: the chunk loop over one simulator, with time limit, rewards and episode statistics.

Everything that must count *simulator* steps lives here, under the chunk. A slot never resets itself
and renders only when `observe` is called.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """Solved at any step?"""
    success_at_end: bool
    """Solved in the last state?"""
    seconds: float
    """Wall-clock seconds from the reset's end to the last step's end."""


@dataclass(frozen=True, kw_only=True)
class SlotReport:
    """What one command did to one slot."""

    fingerprint: str = ""
    """Hex string of the start state, after a reset or a replay; empty after a step."""
    step_rewards: tuple[float, ...] = ()
    """Reward of each simulator step really run, at most K."""
    success: bool = False
    """Solved at any step of this decision?"""
    terminated: bool = False
    """The task's own rule ended the episode."""
    truncated: bool = False
    """The time limit (or the loss of a worker) ended it."""
    lost: bool = False
    """The worker was lost with the episode; nothing else here is meaningful."""
    episode: EpisodeStats | None = None
    """Statistics, on the episode's last decision only."""


class Slot:
    """Drives one simulator by decisions of up to K steps."""

    def __init__(self, simulator: Simulator, tasks: tuple[Task, ...], rule: RewardRule) -> None:
        self._simulator = simulator
        self._tasks = tasks
        self._rule = rule
        self._horizon = 0
        self._fingerprint = ""
        self._length = 0
        self._total_reward = 0.0
        self._last_reward = 0.0
        self._success_once = False
        self._running = False
        self._began = 0.0

    def reset(self, start: StartState) -> SlotReport:
        """Begin an episode; nothing is rendered."""
        self._running = False
        self._fingerprint = self._simulator.reset(start)
        self._horizon = self._tasks[start.task_id].horizon
        self._length = 0
        self._total_reward = 0.0
        self._last_reward = 0.0
        self._success_once = False
        self._running = True
        self._began = time.perf_counter()
        return SlotReport(fingerprint=self._fingerprint)

    def step(self, action_KA: np.ndarray) -> SlotReport:
        """Run up to K steps of float32 `[K, A]`, stopping where the episode ends."""
        if not self._running:
            raise RuntimeError("the slot was stepped although its episode has ended or never began")
        rewards: list[float] = []
        success = solved = terminated = truncated = False
        for action_A in action_KA:
            outcome = self._simulator.step(action_A)
            reward = float(outcome.reward)  # NumPy's numbers become Python's: no worker could send them
            rewards.append(self._rule.pay(reward, self._last_reward))
            self._last_reward = reward
            self._length += 1
            solved = bool(outcome.success)
            success = success or solved
            terminated = bool(outcome.terminated)
            truncated = not terminated and self._length >= self._horizon
            if terminated or truncated:
                break
        self._total_reward += sum(rewards)
        self._success_once = self._success_once or success
        self._running = not (terminated or truncated)
        episode = None if self._running else self._statistics(success_at_end=solved)
        return SlotReport(
            step_rewards=tuple(rewards),
            success=success,
            terminated=terminated,
            truncated=truncated,
            episode=episode,
        )

    def replay(self, start: StartState, action_TA: np.ndarray) -> SlotReport:
        """Reach again the state after `start` and the steps `[T, A]`, rendering nothing in between."""
        began = self.reset(start)
        if not len(action_TA):
            return began
        after = self.step(action_TA)
        return SlotReport(
            fingerprint=began.fingerprint,
            step_rewards=after.step_rewards,
            success=after.success,
            terminated=after.terminated,
            truncated=after.truncated,
            episode=after.episode,
        )

    def observe(self) -> Mapping[str, np.ndarray]:
        """Render the present state, once."""
        return self._simulator.observe()

    def privileged(self) -> np.ndarray:
        """What scripted experts read of the present state, float64 `[P]`."""
        simulator: Any = self._simulator  # only benchmarks that declare a `privileged_dim` have it
        state: np.ndarray = simulator.privileged()
        return state

    def close(self) -> None:
        """Free the simulator."""
        self._running = False
        self._simulator.close()

    def _statistics(self, *, success_at_end: bool) -> EpisodeStats:
        return EpisodeStats(
            total_reward=self._total_reward,
            length=self._length,
            success_once=self._success_once,
            success_at_end=success_at_end,
            seconds=time.perf_counter() - self._began,
        )
