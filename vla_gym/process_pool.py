"""`ProcessPool`: slots in worker processes, all stepping at the same time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait

from vla_gym import errors
from vla_gym.errors import VLAZooError, WorkerFailed
from vla_gym.messages import Failure, read_reply, write_commands
from vla_gym.pool import OnWorkerError, SlotCommand, SlotSetup, describe, warn_of_restart
from vla_gym.slot import SlotReport
from vla_gym.slot_memory import SlotMemory, shared_block
from vla_gym.worker_process import WorkerProcess

GRACE = 5.0
"""Seconds that all workers together get to free their simulators when the pool is closed."""
MAX_RESTARTS = 3
"""Restarts of one worker in a row, without an answer in between, after which it counts as broken."""
LOST = SlotReport(truncated=True, lost=True)


class ProcessPool:
    """Deals N slots to workers in adjacent blocks; one message per worker and `run`.

    With `on_worker_error="restart"` a worker that died, hung or raised is started anew: its steps are
    reported as lost, its resets are done again.
    """

    def __init__(
        self,
        setup: SlotSetup,
        environments: Sequence[Mapping[str, str]],
        *,
        step_timeout: float,
        reset_timeout: float,
        on_worker_error: OnWorkerError = "raise",
    ) -> None:
        self._setup = setup
        self._environments = environments
        self._step_timeout = step_timeout
        self._reset_timeout = reset_timeout
        self._on_worker_error = on_worker_error
        self._closed = False
        self._last_failure = ""
        self._restarts = [0] * len(environments)
        self._bereft: set[int] = set()
        """Slots whose episode went with a worker while nothing was asked of them."""
        self._memory_fd = shared_block(setup.memory.offsets()[1])
        self.memory = SlotMemory.attach(setup.memory, self._memory_fd)
        self._workers: list[WorkerProcess] = []
        try:
            for number in range(len(environments)):
                self._workers.append(self._start(number))
            self._worker_of = {slot: n for n, worker in enumerate(self._workers) for slot in worker.slots}
            self._await_ready(range(len(environments)))
        except BaseException:
            self.close()
            raise

    def run(self, commands: Sequence[SlotCommand]) -> list[SlotReport]:
        """See `vla_gym.pool.Pool.run`."""
        try:
            return self._run(commands)
        except BaseException:  # also Ctrl-C: answers under way would be taken for later ones
            self.close()
            raise

    def pids(self) -> list[int]:
        """Process id of each worker."""
        return [worker.pid for worker in self._workers]

    def last_failure(self) -> str:
        """See `vla_gym.pool.Pool.last_failure`."""
        return self._last_failure

    def close(self) -> None:
        """See `vla_gym.pool.Pool.close`."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + GRACE
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        os.close(self._memory_fd)

    def _start(self, number: int) -> WorkerProcess:
        total, count = self._setup.memory.num_slots, len(self._environments)
        slots = range(number * total // count, (number + 1) * total // count)
        return WorkerProcess(self._setup, slots, self._environments[number], self._memory_fd)

    def _await_ready(self, numbers: Sequence[int]) -> None:
        for answer in self._collect(numbers, self._reset_timeout, {}).values():
            if not isinstance(answer, list):
                raise answer

    def _run(self, commands: Sequence[SlotCommand]) -> list[SlotReport]:
        by_slot: dict[int, SlotReport] = {}
        jobs: dict[int, list[SlotCommand]] = {}
        for command in commands:
            if command.kind == "step" and command.slot in self._bereft:
                by_slot[command.slot] = LOST
            else:
                jobs.setdefault(self._worker_of[command.slot], []).append(command)
            self._bereft.discard(command.slot)
        for number, job in jobs.items():
            self._workers[number].send(write_commands(job, self.memory))
        only_steps = all(command.kind == "step" for command in commands)
        answers = self._collect(list(jobs), self._step_timeout if only_steps else self._reset_timeout, jobs)
        for number, job in jobs.items():
            answer = answers[number]
            reports = answer if isinstance(answer, list) else self._recover(number, job, answer)
            by_slot.update(zip((command.slot for command in job), reports, strict=True))
        return [by_slot[command.slot] for command in commands]

    def _collect(
        self, numbers: Sequence[int], timeout: float, jobs: Mapping[int, list[SlotCommand]]
    ) -> dict[int, list[SlotReport] | VLAZooError]:
        """Answer or failure of each worker in `numbers`, as they come."""
        pending = {self._workers[number].connection: number for number in numbers}
        answers: dict[int, list[SlotReport] | VLAZooError] = {}
        deadline = time.monotonic() + timeout
        while pending:
            for connection in wait(list(pending), timeout=max(0.0, deadline - time.monotonic())):
                number = pending.pop(connection)  # type: ignore[call-overload]
                answers[number] = self._hear(number, jobs.get(number, []))
            if time.monotonic() >= deadline:
                for number in pending.values():
                    answers[number] = self._error(number, jobs.get(number, []), f"hung for {timeout:g} s")
                break
        return answers

    def _hear(self, number: int, job: list[SlotCommand]) -> list[SlotReport] | VLAZooError:
        worker = self._workers[number]
        try:
            reply = read_reply(worker.receive())
        except (EOFError, ConnectionError):
            return self._error(number, job, worker.fate())
        if isinstance(reply, Failure):
            known = getattr(errors, reply.kind, None)
            if isinstance(known, type) and issubclass(known, VLAZooError):
                return known(reply.text)  # such as a missing asset: already says what to do
            culprit = job[reply.command :][:1] if reply.command >= 0 else []
            return self._error(number, culprit or job, f"raised {reply.kind}: {reply.text}")
        self._restarts[number] = 0
        return reply

    def _error(self, number: int, job: Sequence[SlotCommand], what: str) -> WorkerFailed:
        worker = self._workers[number]
        doing = "; ".join(describe(self._setup, command) for command in job[:3])
        more = f" and {len(job) - 3} more" if len(job) > 3 else ""
        said = worker.last_output()
        return WorkerFailed(
            f"worker {number} (pid {worker.pid}) {what} [{doing or f'{self._setup.env_id}, starting'}{more}]"
            + (f". Its last output: {said}" if said else "")
        )

    def _recover(self, number: int, job: list[SlotCommand], why: VLAZooError) -> list[SlotReport]:
        """Raise, or start the worker anew, do its resets again and report its steps as lost."""
        self._restarts[number] += 1
        if self._on_worker_error == "raise" or self._restarts[number] > MAX_RESTARTS:
            raise why
        self._last_failure = str(why)
        warn_of_restart(str(why))
        old = self._workers[number]
        old.waiting = True
        old.hang_up()
        old.end(0.0)
        self._workers[number] = self._start(number)
        self._bereft.update(set(old.slots) - {command.slot for command in job})
        restarts = self._restarts[number]
        self._await_ready([number])
        self._restarts[number] = restarts  # being ready is not yet an answer
        again = [command for command in job if command.kind != "step"]
        reports = {command.slot: LOST for command in job}
        if again:
            self._workers[number].send(write_commands(again, self.memory))
            answer = self._collect([number], self._reset_timeout, {number: again})[number]
            redone = answer if isinstance(answer, list) else self._recover(number, again, answer)
            reports.update(zip((command.slot for command in again), redone, strict=True))
        return [reports[command.slot] for command in job]
