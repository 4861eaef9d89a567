"""`SubEnv`: the chunk loop over one simulator, and a worker process that hosts some of them.

Everything that must count *simulator* steps lives here, under the chunk. A sub-environment never resets itself
and renders only in `observe`. A worker, `python -m vla_gym.workers.worker SOCKET_FD MEMORY_FD`, answers each message of
commands with one of reports, and ends when its parent does, however that happens. Nothing of the user's program is
imported there.
"""

from __future__ import annotations

import dataclasses
import os
import pkgutil
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from vla_gym.observation import ObservationLayout
from vla_gym.simulator import Simulator
from vla_gym.specs import RewardRule, StartState, Task
from vla_gym.system.child import end_with_parent, leave_signals_to_parent
from vla_gym.workers.messages import (
    Command,
    EpisodeStats,
    Report,
    SlotMemory,
    SubEnvSetup,
    read_commands,
    read_setup,
    write_failure,
    write_reports,
)


class SubEnv:
    """Drives one simulator by decisions of up to K steps."""

    def __init__(
        self,
        simulator: Simulator,
        tasks: tuple[Task, ...],
        rule: RewardRule,
        layout: ObservationLayout,
        draw_every: int = 1,
    ) -> None:
        self._simulator = simulator
        self._tasks = tasks
        self._rule = rule
        self._layout = layout
        self._draw_every = draw_every
        self._drawn: dict[str, np.ndarray] = {}
        """Of this episode, what was rendered last."""
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
        self._drawn = {}
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
            rewards.append(self._paid(reward))
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

    def _paid(self, reward: float) -> float:
        """Return `RewardRule`'s reward of one step, given the benchmark's own."""
        if self._rule.kind == "differenced":
            return self._rule.scale * (reward - self._last_reward)
        return self._rule.scale * reward - (1.0 if self._rule.kind == "step_penalty" else 0.0)

    def replay(self, start: StartState, action_TA: np.ndarray) -> Report:
        """Reach again the state after `start` and the steps `[T, A]`, rendering nothing in between."""
        began = self.reset(start)
        if not len(action_TA):
            return began
        return dataclasses.replace(self.step(action_TA), start_state=began.start_state)

    def observe(self) -> dict[str, np.ndarray]:
        """Render the present state, once, or return what was rendered last; the keys are those of the layout."""
        if not self._drawn or self._length % self._draw_every == 0:
            self._drawn = dict(self._simulator.observe())
        observation = dict(self._drawn)
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


def build_sub_env(setup: SubEnvSetup) -> SubEnv:
    """Import the simulator and construct one sub-environment."""
    layout = setup.memory.observation
    simulator: Simulator = pkgutil.resolve_name(setup.simulator)(
        setup.tasks, layout.image_size, layout.cameras, **setup.simulator_kwargs
    )
    return SubEnv(simulator, setup.tasks, setup.rule, layout, setup.draw_every)


def main(socket_fd: int, memory_fd: int) -> int:
    """Serve until the parent closes the connection."""
    leave_signals_to_parent()
    end_with_parent(os.getppid())
    try:
        return _serve(Connection(socket_fd), memory_fd)
    except (EOFError, ConnectionError):
        return 0  # the parent has gone


def _serve(connection: Connection, memory_fd: int) -> int:
    setup, slots = read_setup(connection.recv_bytes())
    memory = SlotMemory(setup.memory, memory_fd)
    os.close(memory_fd)
    try:
        envs = {slot: build_sub_env(setup) for slot in slots}
    except Exception as error:  # noqa: BLE001  sent to the parent, which raises it with its context
        return _fail(connection, error, command=-1)
    connection.send_bytes(write_reports([]))
    try:
        return _answer(connection, memory, envs)
    finally:
        for env in envs.values():
            env.close()


def _answer(connection: Connection, memory: SlotMemory, envs: dict[int, SubEnv]) -> int:
    while True:
        message = connection.recv_bytes()
        reports: list[Report] = []
        try:
            for command in read_commands(message, memory):
                env = envs[command.slot]
                reports.append(env.run(command))
                memory.write(command.slot, env.observe())
            answer = write_reports(reports)
        except Exception as error:  # noqa: BLE001  sent to the parent, which raises it with its context
            return _fail(connection, error, command=len(reports))
        connection.send_bytes(answer)


def _fail(connection: Connection, error: Exception, *, command: int) -> int:
    traceback.print_exception(error, file=sys.stderr)
    connection.send_bytes(write_failure(error, command=command))
    return 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
