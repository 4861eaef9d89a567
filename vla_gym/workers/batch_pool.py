"""`BatchPool`: every slot is one row of a simulator that advances all of them together, as physics on a GPU do.

Such a simulator cannot let one row rest while the others go on. So a slot whose chunk is over is saved and put back
when the longest chunk is through; only then do new episodes begin, and only then is everything drawn, once.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vla_gym.errors import VLAZooError, WorkerFailed
from vla_gym.simulator import SimStep
from vla_gym.specs import StartState, Task
from vla_gym.workers.pool import Pool, SlotCommand, SlotSetup, Ticket, describe
from vla_gym.workers.shared_memory import SlotMemory
from vla_gym.workers.sub_env import Slot, SlotReport


@dataclass(frozen=True, kw_only=True)
class BatchStep:
    """Outcome of one policy step, for every slot."""

    reward_N: np.ndarray
    """Float `[N]`: the benchmark's own reward."""
    success_N: np.ndarray
    """Bool `[N]`: is the task solved in the state reached?"""
    terminated_N: np.ndarray
    """Bool `[N]`: does the episode end here by the task's own rule?"""


class BatchSimulator(Protocol):
    """N slots that move together; slot numbers are always given in ascending order."""

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
        """Put the given slots into start states, the others left as they are; slot -> fingerprint."""

    def step(self, action_NA: np.ndarray) -> BatchStep:
        """Advance every slot one policy step with float32 actions `[N, A]` in [-1, 1]."""

    def save(self, slots: Sequence[int]) -> Any:
        """Present state of some slots."""

    def restore(self, slots: Sequence[int], saved: Any) -> None:
        """Put the same slots back where `save` found them."""

    def observe(self) -> Mapping[str, np.ndarray]:
        """Draw every slot now: `{"image": u8[N, H, W, 3], "wrist_image": ..., "state": f32[N, S]}`."""

    def close(self) -> None:
        """Free the simulator."""


class _Row:
    """What a `Slot` takes for its simulator: its row of the last thing that the batch did."""

    def __init__(self) -> None:
        self.fingerprint = ""
        self.outcome = SimStep(reward=0.0, success=False, terminated=False)

    def reset(self, start: StartState) -> str:
        return self.fingerprint

    def step(self, action_A: np.ndarray) -> SimStep:
        return self.outcome

    def observe(self) -> Mapping[str, np.ndarray]:
        raise NotImplementedError("the batch draws all slots at once")

    def close(self) -> None:
        pass


class BatchPool(Pool):
    """Over one `BatchSimulator` in this process; a failure ends all slots, always."""

    def __init__(self, setup: SlotSetup, *, num_workers: int) -> None:
        self._setup = setup
        self.memory = SlotMemory.private(setup.memory)
        layout = setup.memory.observation
        count = setup.memory.num_slots
        self._batch: BatchSimulator = pkgutil.resolve_name(setup.simulator)(
            setup.tasks,
            layout.image_size,
            layout.cameras,
            num_envs=count,
            num_workers=num_workers,
            **setup.simulator_kwargs,
        )
        self._rows = [_Row() for _ in range(count)]
        self._slots = [Slot(row, setup.tasks, setup.rule) for row in self._rows]
        self._playing: set[int] = set()
        """Slots in the middle of an episode."""
        self._closed = False

    def send(self, commands: Sequence[SlotCommand]) -> Ticket:
        """See `vla_gym.workers.pool.Pool.send`."""
        reports = self._guarded_run(commands) if commands else []
        return Ticket(commands, {command.slot: one for command, one in zip(commands, reports, strict=True)})

    def receive(self, ticket: Ticket) -> list[SlotReport]:
        """See `vla_gym.workers.pool.Pool.receive`."""
        return ticket.answers()

    def pids(self) -> list[int]:
        """No process runs a slot."""
        return []

    def last_failure(self) -> str:
        """Nothing is ever started anew."""
        return ""

    def close(self) -> None:
        """See `vla_gym.workers.pool.Pool.close`."""
        if not self._closed:
            self._closed = True
            self._batch.close()

    def _guarded_run(self, commands: Sequence[SlotCommand]) -> list[SlotReport]:
        try:
            return self._run(commands)
        except VLAZooError:
            self.close()
            raise
        except Exception as error:
            self.close()
            what = "; ".join(describe(self._setup, command) for command in commands[:3])
            more = f" and {len(commands) - 3} more" if len(commands) > 3 else ""
            raise WorkerFailed(f"{what}{more}: {type(error).__name__}: {error}") from error

    def _run(self, commands: Sequence[SlotCommand]) -> list[SlotReport]:
        parts: dict[int, list[SlotReport]] = {command.slot: [] for command in commands}
        self._begin([command for command in commands if command.kind == "replay"], parts)
        self._advance([command for command in commands if command.kind != "reset"], parts)
        self._begin(
            [command for command in commands if command.kind == "reset"], parts
        )  # not moved by the steps
        seen = self._batch.observe()
        for slot in parts:
            self.memory.write(slot, {key: seen[key][slot] for key in self.memory.observation})
        return [_joined(parts[command.slot]) for command in commands]

    def _begin(self, commands: Sequence[SlotCommand], parts: Mapping[int, list[SlotReport]]) -> None:
        starts = {command.slot: command.start for command in sorted(commands, key=lambda one: one.slot)}
        if not starts:
            return
        for slot, fingerprint in self._batch.reset(starts).items():
            self._rows[slot].fingerprint = fingerprint
            parts[slot].append(self._slots[slot].reset(starts[slot]))
        self._playing.update(starts)

    def _advance(self, commands: Sequence[SlotCommand], parts: Mapping[int, list[SlotReport]]) -> None:
        """Run every slot's actions side by side, each up to its own end."""
        given = {command.slot: command.action_TA for command in commands}
        left = {
            slot: action_TA for slot, action_TA in given.items() if action_TA is not None and len(action_TA)
        }
        waiting = sorted(self._playing - left.keys())
        held = [(waiting, self._batch.save(waiting))] if waiting and left else []
        done = 0
        while left:
            action_NA = np.zeros((len(self._slots), self.memory.layout.action_dim), dtype=np.float32)
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
                report = self._slots[slot].step(action_TA[done - 1 : done])
                parts[slot].append(report)
                if report.episode is not None:
                    self._playing.discard(slot)
                if report.episode is not None or done == len(action_TA):
                    over.append(slot)
            for slot in over:
                del left[slot]
            if over and left:
                held.append((sorted(over), self._batch.save(sorted(over))))
        for slots, saved in held:
            self._batch.restore(slots, saved)


def _joined(parts: Sequence[SlotReport]) -> SlotReport:
    """The reports of one command's parts (a beginning, single steps) as one."""
    return dataclasses.replace(
        parts[-1],
        fingerprint=parts[0].fingerprint,
        step_rewards=tuple(reward for part in parts for reward in part.step_rewards),
        success=any(part.success for part in parts),
    )
