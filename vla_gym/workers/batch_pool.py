"""`BatchPool`: every sub-environment is one row of a simulator that advances all rows together, as GPU physics do.

Such a simulator cannot let one row rest while the others go on. So a row whose chunk is over is saved and restored
when the longest chunk has ended; only then do new episodes begin, and only then is everything rendered, once.
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

    def restore(self, slots: Sequence[int], saved: Any) -> None:
        """Put the same slots back into their saved state."""

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
    """Over one `BatchSimulator` in this process; a failure ends all slots, always."""

    def __init__(self, setup: SubEnvSetup, *, num_workers: int) -> None:
        self._setup = setup
        self.memory = SlotMemory(setup.memory)
        self._batch = _build(setup, num_workers)
        self._rows = [_Row() for _ in range(setup.memory.num_slots)]
        self._envs = [SubEnv(row, setup.tasks, setup.rule, setup.memory.observation) for row in self._rows]
        self._running: set[int] = set()
        """Slots in the middle of an episode."""
        self._closed = False

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        try:
            return PendingCommands(commands, self._run(commands) if commands else {})
        except VLAZooError:
            self.close()
            raise
        except Exception as error:
            self.close()
            what = describe_commands(self._setup, commands)
            raise WorkerFailed(f"{what}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._batch.close()

    def _run(self, commands: Sequence[Command]) -> dict[int, Report]:
        parts: dict[int, list[Report]] = {command.slot: [] for command in commands}
        self._begin([command for command in commands if command.kind == "replay"], parts)
        self._advance([command for command in commands if command.kind != "reset"], parts)
        # After the steps, which would move them.
        self._begin([command for command in commands if command.kind == "reset"], parts)
        observation = self._batch.observe()
        for slot in parts:
            self.memory.write(slot, {key: observation[key][slot] for key in self.memory.observation})
        return {slot: _joined(reports) for slot, reports in parts.items()}

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
        for slots, saved in held:
            self._batch.restore(slots, saved)


def _build(setup: SubEnvSetup, num_workers: int) -> BatchSimulator:
    layout = setup.memory.observation
    try:
        batch: BatchSimulator = pkgutil.resolve_name(setup.simulator)(
            setup.tasks,
            layout.image_size,
            layout.cameras,
            num_envs=setup.memory.num_slots,
            num_workers=num_workers,
            **setup.simulator_kwargs,
        )
    except VLAZooError:
        raise
    except Exception as error:
        raise WorkerFailed(f"{setup.env_id}, starting: {type(error).__name__}: {error}") from error
    return batch


def _joined(parts: Sequence[Report]) -> Report:
    """The reports of one command's parts (a beginning, single steps) as one."""
    return dataclasses.replace(
        parts[-1],
        start_state=parts[0].start_state,
        step_rewards=tuple(reward for part in parts for reward in part.step_rewards),
        success=any(part.success for part in parts),
    )
