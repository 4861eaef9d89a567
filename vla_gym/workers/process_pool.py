"""`ProcessPool`: slots in worker processes, all stepping at the same time."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait

from vla_gym import errors
from vla_gym.errors import VLAZooError, WorkerFailed
from vla_gym.workers.messages import Failure, read_reply, write_commands
from vla_gym.workers.pool import (
    OnWorkerError,
    Pool,
    SlotCommand,
    SlotSetup,
    Ticket,
    describe,
    warn_of_restart,
)
from vla_gym.workers.shared_memory import SlotMemory, shared_block
from vla_gym.workers.sub_env import SlotReport
from vla_gym.workers.worker_process import WorkerProcess

GRACE = 5.0
"""Seconds that all workers together get to free their simulators when the pool is closed."""
MAX_RESTARTS = 3
"""Restarts of one worker in a row, without an answer in between, after which it counts as broken."""
LOST = SlotReport(truncated=True, lost=True)


def deal_slots(num_slots: int, num_workers: int, num_stages: int = 1) -> list[tuple[int, ...]]:
    """Slots of each worker: adjacent blocks, or with stages an adjacent block of each stage's slots.

    So whichever stage is stepped, all workers have work.
    """
    size = num_slots // num_stages
    order = sorted(range(num_slots), key=lambda slot: (slot % size, slot))
    bounds = [number * num_slots // num_workers for number in range(num_workers + 1)]
    return [tuple(sorted(order[first:last])) for first, last in itertools.pairwise(bounds)]


class ProcessPool(Pool):
    """Deals N slots to workers, see `deal_slots`; one message per worker and `send`, answered in turn.

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
        num_stages: int = 1,
    ) -> None:
        self._setup = setup
        self._deal = deal_slots(setup.memory.num_slots, len(environments), num_stages)
        self._environments = environments
        self._step_timeout = step_timeout
        self._reset_timeout = reset_timeout
        self._on_worker_error = on_worker_error
        self._closed = False
        self._last_failure = ""
        self._restarts = [0] * len(environments)
        self._under_way: deque[Ticket] = deque()
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

    def send(self, commands: Sequence[SlotCommand]) -> Ticket:
        """See `vla_gym.workers.pool.Pool.send`."""
        with self._closed_on_failure():
            return self._send(commands)

    def receive(self, ticket: Ticket) -> list[SlotReport]:
        """See `vla_gym.workers.pool.Pool.receive`."""
        with self._closed_on_failure():
            return self._receive(ticket)

    def pids(self) -> list[int]:
        """Process id of each worker."""
        return [worker.pid for worker in self._workers]

    def last_failure(self) -> str:
        """See `vla_gym.workers.pool.Pool.last_failure`."""
        return self._last_failure

    def close(self) -> None:
        """See `vla_gym.workers.pool.Pool.close`."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + GRACE
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        os.close(self._memory_fd)

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # also Ctrl-C: answers under way would be taken for later ones
            self.close()
            raise

    def _start(self, number: int) -> WorkerProcess:
        return WorkerProcess(self._setup, self._deal[number], self._environments[number], self._memory_fd)

    def _await_ready(self, numbers: Sequence[int]) -> None:
        for answer in self._collect(numbers, {}).values():
            if not isinstance(answer, list):
                raise answer

    def _send(self, commands: Sequence[SlotCommand]) -> Ticket:
        ticket = Ticket(commands)
        for command in commands:
            if command.kind == "step" and command.slot in self._bereft:
                ticket.reports[command.slot] = LOST
            else:
                ticket.jobs.setdefault(self._worker_of[command.slot], []).append(command)
            self._bereft.discard(command.slot)
        for number, job in ticket.jobs.items():
            self._workers[number].send(write_commands(job, self.memory))
        self._under_way.append(ticket)
        return ticket

    def _receive(self, ticket: Ticket) -> list[SlotReport]:
        assert self._under_way[0] is ticket, "workers answer in the order they were asked"
        self._under_way.popleft()
        answers = self._collect(list(ticket.jobs), ticket.jobs)
        for number, job in ticket.jobs.items():
            answer = answers[number]
            reports = answer if isinstance(answer, list) else self._recover(number, job, answer)
            ticket.reports.update(zip((command.slot for command in job), reports, strict=True))
        return ticket.answers()

    def _collect(
        self, numbers: Sequence[int], jobs: Mapping[int, list[SlotCommand]]
    ) -> dict[int, list[SlotReport] | VLAZooError]:
        """Answer or failure of each worker in `numbers`, as they come; one without a job is starting."""
        pending = {self._workers[number].connection: number for number in numbers}
        answers: dict[int, list[SlotReport] | VLAZooError] = {}
        began = time.monotonic()
        deadlines = {number: began + self._timeout(jobs.get(number, [])) for number in numbers}
        while pending:
            first = min(deadlines[number] for number in pending.values())
            for connection in wait(list(pending), timeout=max(0.0, first - time.monotonic())):
                number = pending.pop(connection)  # type: ignore[call-overload]
                answers[number] = self._hear(number, jobs.get(number, []))
            now = time.monotonic()
            for connection, number in list(pending.items()):
                if now >= deadlines[number]:
                    del pending[connection]
                    job = jobs.get(number, [])
                    answers[number] = self._error(number, job, f"hung for {self._timeout(job):g} s")
        return answers

    def _timeout(self, job: Sequence[SlotCommand]) -> float:
        """Seconds that a worker may take for its own job, whatever the others have to do."""
        only_steps = bool(job) and all(command.kind == "step" for command in job)
        return self._step_timeout if only_steps else self._reset_timeout

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
        old.kill()
        old.hang_up()
        old.end(0.0)
        self._workers[number] = self._start(number)
        restarts = self._restarts[number]
        self._await_ready([number])
        self._restarts[number] = restarts  # being ready is not yet an answer
        reports = {command.slot: LOST for command in job}
        again = [command for command in job if command.kind != "step"]
        if again:
            self._workers[number].send(write_commands(again, self.memory))
        asked = reports.keys() | self._ask_again(number)
        self._bereft.update(set(old.slots) - asked)
        if again:
            answer = self._collect([number], {number: again})[number]
            redone = answer if isinstance(answer, list) else self._recover(number, again, answer)
            reports.update(zip((command.slot for command in again), redone, strict=True))
        return [reports[command.slot] for command in job]

    def _ask_again(self, number: int) -> set[int]:
        """What a worker that was started anew owes to later tickets: steps are lost, the rest is asked again.

        Returns the slots of those tickets.
        """
        slots: set[int] = set()
        for ticket in self._under_way:
            job = ticket.jobs.pop(number, [])
            slots.update(command.slot for command in ticket.commands)
            ticket.reports.update((command.slot, LOST) for command in job if command.kind == "step")
            again = [command for command in job if command.kind != "step"]
            if again:
                ticket.jobs[number] = again
                self._workers[number].send(write_commands(again, self.memory))
        return slots
