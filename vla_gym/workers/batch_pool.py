"""`BatchPool`: every sub-environment is one row of a simulator that advances all rows together, as GPU physics do.

Such a simulator cannot let one row rest while the others go on. So a row whose chunk is over is saved and restored
when the longest chunk has ended; only then do new episodes begin, and only then is everything rendered, once.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vla_gym.errors import VLAZooError, WorkerFailed
from vla_gym.simulator import SimStep
from vla_gym.specs import StartState, Task
from vla_gym.workers.messages import Command, PendingCommands, Report, SlotMemory, SubEnvSetup
from vla_gym.workers.pool import Pool, describe_commands
from vla_gym.workers.worker import SubEnv


@dataclass(frozen=True, kw_only=True)
class BatchStep:
    """Outcome of one policy step, for every row."""

    reward_N: np.ndarray
    """Float `[N]`: the benchmark's own reward."""
    success_N: np.ndarray
    """Bool `[N]`: whether the task is solved in the state reached."""
    terminated_N: np.ndarray
    """Bool `[N]`: whether the episode ends here by the task's own rule."""


class BatchSimulator(Protocol):
    """N slots that advance together; slot numbers are always given in ascending order."""

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        num_envs: int,
        num_workers: int,
        **kwargs: object,
    ) -> None: ...

    def reset(self, starts: Mapping[int, StartState]) -> Mapping[int, str]:
        """Put the given slots into start states, leave the others alone; slot -> hash of the state."""

    def step(self, action_NA: np.ndarray) -> BatchStep:
        """Advance every slot one policy step with float32 actions `[N, A]` in [-1, 1]."""

    def save(self, slots: Sequence[int]) -> Any:
        """Present state of some slots."""

    def restore(self, held: Sequence[tuple[Sequence[int], Any]]) -> None:
        """Put slots back into the state that `save` gave of them, as often as it was asked; no slot comes twice."""

    def observe(self) -> Mapping[str, np.ndarray]:
        """Render every slot now: `{"image": u8[N, H, W, 3], "wrist_image": ..., "state": f32[N, S]}`."""

    def close(self) -> None:
        """Free the simulator."""


class _Row:
    """A `SubEnv`'s simulator: its row of the batch's last result."""

    def __init__(self) -> None:
        self.start_state = ""
        self.outcome = SimStep(reward=0.0, success=False, terminated=False)

    def reset(self, start: StartState) -> str:
        return self.start_state

    def step(self, action_A: np.ndarray) -> SimStep:
        return self.outcome

    def observe(self) -> Mapping[str, np.ndarray]:
        raise NotImplementedError("the batch renders all slots at once")

    def close(self) -> None:
        pass


class BatchPool(Pool):
    """Over a `BatchSimulator` for each stage, in this process; a failure ends all slots, always.

    Several stages run each in a thread of its own, and `send` returns at once.
    """

    def __init__(self, setup: SubEnvSetup, *, num_workers: int, num_stages: int = 1) -> None:
        self._setup = setup
        self.memory = SlotMemory(setup.memory)
        size = setup.memory.num_slots // num_stages
        workers = max(1, num_workers // num_stages) if num_workers else 0
        self._stages = [
            _Stage(setup, self.memory, range(first, first + size), workers)
            for first in range(0, setup.memory.num_slots, size)
        ]
        self._threads = [ThreadPoolExecutor(1) for _ in self._stages] if num_stages > 1 else []
        self._sent: deque[list[Future[dict[int, Report]]]] = deque()
        self._closed = False

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        if self._threads:
            own = [[command for command in commands if command.slot in stage.slots] for stage in self._stages]
            running = zip(self._threads, self._stages, own, strict=True)
            self._sent.append([thread.submit(stage.run, part) for thread, stage, part in running if part])
            return PendingCommands(commands)
        with self._closed_on_failure(commands):
            return PendingCommands(commands, self._stages[0].run(commands) if commands else {})

    def receive(self, pending: PendingCommands) -> list[Report]:
        if self._threads:
            with self._closed_on_failure(pending.commands):
                for reports in self._sent.popleft():
                    pending.reports.update(reports.result())
        return pending.ordered_reports()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for thread in self._threads:
                thread.shutdown()
            for stage in self._stages:
                stage.close()

    @contextmanager
    def _closed_on_failure(self, commands: Sequence[Command]) -> Iterator[None]:
        try:
            yield
        except VLAZooError:
            self.close()
            raise
        except Exception as error:
            self.close()
            what = describe_commands(self._setup, commands)
            raise WorkerFailed(f"{what}: {type(error).__name__}: {error}") from error


class _Stage:
    """The `slots` of one simulator, whose rows count from 0."""

    def __init__(self, setup: SubEnvSetup, memory: SlotMemory, slots: range, num_workers: int) -> None:
        self.slots = slots
        self.memory = memory
        self._batch = _build(setup, len(slots), num_workers)
        self._rows = [_Row() for _ in slots]
        self._envs = [SubEnv(row, setup.tasks, setup.rule, setup.memory.observation) for row in self._rows]
        self._running: set[int] = set()
        """Rows in the middle of an episode."""

    def close(self) -> None:
        self._batch.close()

    def run(self, commands: Sequence[Command]) -> dict[int, Report]:
        first = self.slots.start
        commands = [dataclasses.replace(command, slot=command.slot - first) for command in commands]
        parts: dict[int, list[Report]] = {command.slot: [] for command in commands}
        self._begin([command for command in commands if command.kind == "replay"], parts)
        self._advance([command for command in commands if command.kind != "reset"], parts)
        # After the steps, which would move them.
        self._begin([command for command in commands if command.kind == "reset"], parts)
        observation = self._batch.observe()
        for row in parts:
            self.memory.write(first + row, {key: observation[key][row] for key in self.memory.observation})
        return {first + row: _joined(reports) for row, reports in parts.items()}

    def _begin(self, commands: Sequence[Command], parts: Mapping[int, list[Report]]) -> None:
        starts = {command.slot: command.start for command in sorted(commands, key=lambda command: command.slot)}
        if not starts:
            return
        for slot, start_state in self._batch.reset(starts).items():
            self._rows[slot].start_state = start_state
            parts[slot].append(self._envs[slot].reset(starts[slot]))
        self._running.update(starts)

    def _advance(self, commands: Sequence[Command], parts: Mapping[int, list[Report]]) -> None:
        """Run every slot's actions side by side, each up to its own end."""
        given = {command.slot: command.action_TA for command in commands}
        left = {slot: action_TA for slot, action_TA in given.items() if action_TA is not None and len(action_TA)}
        waiting = sorted(self._running - left.keys())
        held = [(waiting, self._batch.save(waiting))] if waiting and left else []
        done = 0
        while left:
            action_NA = np.zeros((len(self._envs), self.memory.layout.action_dim), dtype=np.float32)
            for slot, action_TA in left.items():
                action_NA[slot] = action_TA[done]
            outcome = self._batch.step(action_NA)
            done += 1
            over = []
            for slot, action_TA in left.items():
                self._rows[slot].outcome = SimStep(
                    reward=float(outcome.reward_N[slot]),
                    success=bool(outcome.success_N[slot]),
                    terminated=bool(outcome.terminated_N[slot]),
                )
                report = self._envs[slot].step(action_TA[done - 1 : done])
                parts[slot].append(report)
                if report.episode is not None:
                    self._running.discard(slot)
                if report.episode is not None or done == len(action_TA):
                    over.append(slot)
            for slot in over:
                del left[slot]
            if over and left:
                held.append((sorted(over), self._batch.save(sorted(over))))
        if held:
            self._batch.restore(held)


def _build(setup: SubEnvSetup, num_envs: int, num_workers: int) -> BatchSimulator:
    layout = setup.memory.observation
    try:
        return pkgutil.resolve_name(setup.simulator)(
            setup.tasks,
            layout.image_size,
            layout.cameras,
            num_envs=num_envs,
            num_workers=num_workers,
            **setup.simulator_kwargs,
        )
    except VLAZooError:
        raise
    except Exception as error:
        raise WorkerFailed(f"{setup.env_id}, starting: {type(error).__name__}: {error}") from error


def _joined(parts: Sequence[Report]) -> Report:
    """The reports of one command's parts (a beginning, single steps) as one."""
    return dataclasses.replace(
        parts[-1],
        start_state=parts[0].start_state,
        step_rewards=tuple(reward for part in parts for reward in part.step_rewards),
        success=any(part.success for part in parts),
    )
