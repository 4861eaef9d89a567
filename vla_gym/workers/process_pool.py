"""`ProcessPool`: sub-environments in worker processes, all stepping at the same time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import wait

from vla_gym.errors import VLAZooError, WorkerFailed
from vla_gym.specs import Benchmark
from vla_gym.system.child import exit_words, python_path
from vla_gym.system.limits import WORKER_GB, num_cores, worker_memory
from vla_gym.system.paths import anonymous_file, library_caches
from vla_gym.system.rendering import rendering_environment
from vla_gym.system.vulkan import gpu_physics_environment, sapien_environment
from vla_gym.workers.messages import (
    LOST,
    Command,
    Failure,
    PendingCommands,
    Report,
    SlotMemory,
    SubEnvSetup,
    read_reply,
    write_commands,
    write_setup,
)
from vla_gym.workers.pool import OnWorkerError, Pool, describe_commands, warn_of_restart

GRACE = 5.0
"""Seconds that all workers together get to free their simulators when the pool is closed."""
MAX_RESTARTS = 3
"""Restarts of one worker in a row, without an answer in between, after which it counts as broken."""
STDERR_LINES = 4
"""Lines of a failed worker's stderr that an error quotes."""
_TAIL_BYTES = 8192


def assign_slots(num_slots: int, num_workers: int, num_stages: int = 1) -> list[tuple[int, ...]]:
    """Slots of each worker: adjacent blocks, or with stages an adjacent block of each stage's slots.

    So every worker has work, whichever stage is stepped.
    """
    size = num_slots // num_stages
    order = sorted(range(num_slots), key=lambda slot: (slot % size, slot))
    bounds = [number * num_slots // num_workers for number in range(num_workers + 1)]
    return [tuple(sorted(order[first:last])) for first, last in itertools.pairwise(bounds)]


class WorkerProcess:
    """The parent's end of a worker, started at once; its first message to `recv` is "ready"."""

    def __init__(self, setup: SubEnvSetup, slots: Sequence[int], environ: Mapping[str, str], memory_fd: int) -> None:
        self.slots = tuple(slots)
        self.num_pending = 1
        """Answers that have not come."""
        self.connection, child_end = Pipe()
        # Simulators print a lot while they are imported: kept in a nameless file, quoted when they fail.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed in `join`
        with child_end:
            try:
                self._process = subprocess.Popen(  # noqa: S603  our own module
                    [sys.executable, "-P", "-m", "vla_gym.workers.worker", str(child_end.fileno()), str(memory_fd)],
                    pass_fds=(child_end.fileno(), memory_fd),
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                )
            except OSError:
                self._output.close()
                self.connection.close()
                raise
        self.pid = self._process.pid
        self._send(write_setup(setup, slots))

    def send(self, message: bytes) -> None:
        """Send a request, also before earlier answers came; a dead worker is noticed by its missing answer."""
        self.num_pending += 1
        self._send(message)

    def recv(self) -> bytes:
        """Return the next answer. Raises `EOFError` or `ConnectionError` when the worker is gone."""
        message = self.connection.recv_bytes()
        self.num_pending -= 1
        return message

    def exit_reason(self) -> str:
        """Description of the process's end, for an error message."""
        try:
            return exit_words(self._process.wait(timeout=5.0))
        except subprocess.TimeoutExpired:
            return "hung up without ending"

    def last_output(self) -> str:
        """The last lines of its stdout and stderr, joined by " | "."""
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
        return " | ".join(lines[-STDERR_LINES:])

    def close(self, *, kill: bool = False) -> None:
        """Close the connection, which ends an idle worker in good order; kill a busy one (with `kill`, any)."""
        self.connection.close()
        if kill or self.num_pending:
            self._process.kill()

    def join(self, grace: float) -> None:
        """Wait up to `grace` seconds after `close`, then kill; the process is gone when this returns."""
        try:
            self._process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _send(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except ConnectionError:
            return  # `recv` finds the same, after the worker's last messages


class ProcessPool(Pool):
    """N slots on workers, see `assign_slots`; one message per worker and `send`, answered in order.

    With `on_worker_error="restart"` a worker that died, hung or raised is started anew: its steps are
    reported as lost, its resets are done again.
    """

    def __init__(
        self,
        setup: SubEnvSetup,
        environments: Sequence[Mapping[str, str]],
        *,
        step_timeout: float,
        reset_timeout: float,
        on_worker_error: OnWorkerError = "raise",
        num_stages: int = 1,
    ) -> None:
        self._setup = setup
        self._slots = assign_slots(setup.memory.num_slots, len(environments), num_stages)
        self._environments = environments
        self._step_timeout = step_timeout
        self._reset_timeout = reset_timeout
        self._on_worker_error = on_worker_error
        self._closed = False
        self._restarts = [0] * len(environments)
        self._pending: deque[PendingCommands] = deque()
        self._lost: set[int] = set()
        """Slots whose episode was lost with a worker, until a command of theirs says so or begins another."""
        self._memory_fd = anonymous_file(setup.memory.size())
        self.memory = SlotMemory(setup.memory, self._memory_fd)
        self._workers: list[WorkerProcess] = []
        try:
            for number in range(len(environments)):
                self._workers.append(self._start(number))
            self._worker_of = {slot: n for n, slots in enumerate(self._slots) for slot in slots}
            self._await_ready(range(len(environments)))
        except BaseException:
            self.close()
            raise

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        with self._closed_on_failure():
            pending = PendingCommands(commands)
            for command in commands:
                pending.jobs.setdefault(self._worker_of[command.slot], []).append(command)
            for number in list(pending.jobs):
                self._send_job(number, pending)
            self._pending.append(pending)
            return pending

    def receive(self, pending: PendingCommands) -> list[Report]:
        with self._closed_on_failure():
            assert self._pending[0] is pending, "workers answer in the order of their requests"
            while pending.jobs:  # again where a worker was started anew
                answers = self._collect(pending.jobs)
                for number in list(pending.jobs):
                    answer = answers[number]
                    if isinstance(answer, list):
                        self._restarts[number] = 0
                        slots = [command.slot for command in pending.jobs.pop(number)]
                        pending.reports.update(zip(slots, answer, strict=True))
                    else:
                        self._restart(number, answer)
            self._pending.popleft()
            return pending.ordered_reports()

    def pids(self) -> list[int]:
        """Process id of each worker."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.close()
        deadline = time.monotonic() + GRACE
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        os.close(self._memory_fd)

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # also Ctrl-C: pending answers would be taken for later ones
            self.close()
            raise

    def _start(self, number: int) -> WorkerProcess:
        try:
            return WorkerProcess(self._setup, self._slots[number], self._environments[number], self._memory_fd)
        except OSError as error:
            raise WorkerFailed(
                f"cannot start worker {number} of {len(self._slots)}: {error.strerror}; give fewer num_workers, or "
                "raise the limits of the system (ulimit -n for open files, -u for processes)"
            ) from error

    def _await_ready(self, numbers: Sequence[int]) -> None:
        for answer in self._collect({number: [] for number in numbers}).values():
            if not isinstance(answer, list):
                raise answer

    def _collect(self, jobs: Mapping[int, list[Command]]) -> dict[int, list[Report] | VLAZooError]:
        """Answer or failure of each worker with a job, as they come; one with an empty job is starting."""
        waiting = {self._workers[number].connection: number for number in jobs}
        answers: dict[int, list[Report] | VLAZooError] = {}
        began = time.monotonic()
        deadlines = {number: began + self._timeout(job) for number, job in jobs.items()}
        while waiting:
            first = min(deadlines[number] for number in waiting.values())
            for connection in wait(list(waiting), timeout=max(0.0, first - time.monotonic())):
                number = waiting.pop(connection)  # type: ignore[call-overload]
                answers[number] = self._recv(number, jobs[number])
            now = time.monotonic()
            for connection, number in list(waiting.items()):
                if now >= deadlines[number]:
                    del waiting[connection]
                    job = jobs[number]
                    answers[number] = self._error(number, job, f"hung for {self._timeout(job):g} s")
        return answers

    def _timeout(self, job: Sequence[Command]) -> float:
        only_steps = bool(job) and all(command.kind == "step" for command in job)
        return self._step_timeout if only_steps else self._reset_timeout

    def _recv(self, number: int, job: list[Command]) -> list[Report] | VLAZooError:
        worker = self._workers[number]
        try:
            reply = read_reply(worker.recv())
        except (EOFError, ConnectionError):
            return self._error(number, job, worker.exit_reason())
        if isinstance(reply, Failure):
            culprit = job[reply.command :][:1] if reply.command >= 0 else []
            failed = self._error(number, culprit or job, f"raised {reply.kind}: {reply.text}")
            return reply.user_error() or failed
        return reply

    def _error(self, number: int, job: Sequence[Command], reason: str) -> WorkerFailed:
        worker = self._workers[number]
        commands = describe_commands(self._setup, job) or f"{self._setup.env_id}, starting"
        output = worker.last_output()
        return WorkerFailed(
            f"worker {number} (pid {worker.pid}) {reason} [{commands}]"
            + (f". Its last output: {output}" if output else "")
        )

    def _send_job(self, number: int, pending: PendingCommands) -> None:
        """Send a worker its commands, except the steps of lost episodes, which are reported at once."""
        job = []
        for command in pending.jobs.pop(number):
            if command.kind == "step" and command.slot in self._lost:
                pending.reports[command.slot] = LOST
            else:
                job.append(command)
            self._lost.discard(command.slot)
        if job:
            pending.jobs[number] = job
            self._workers[number].send(write_commands(job, self.memory))

    def _restart(self, number: int, error: VLAZooError) -> None:
        """Raise, or start the worker anew and send it again what is pending: its steps are lost."""
        self._restarts[number] += 1
        if self._on_worker_error == "raise" or self._restarts[number] > MAX_RESTARTS:
            raise error
        self.last_failure = str(error)
        warn_of_restart(str(error))
        self._workers[number].close(kill=True)
        self._workers[number].join(0.0)
        self._workers[number] = self._start(number)
        self._await_ready([number])
        self._lost.update(self._slots[number])
        for pending in self._pending:
            if number in pending.jobs:
                self._send_job(number, pending)


BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
RENDER_THREADS = ("LP_NUM_THREADS", "NUMBA_NUM_THREADS")
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Large allocations in huge pages: loading a 280 MB compiled scene takes 0.15 s instead of 0.4 s."""


def simulator_environment(benchmark: Benchmark, environ: Mapping[str, str], *, worker: int = 0) -> dict[str, str]:
    """Variables the benchmark's simulator reads when it is imported; none when it draws with NumPy."""
    if "mani_skill" in benchmark.requires:
        return gpu_physics_environment(environ) if benchmark.batched else sapien_environment(environ, worker=worker)
    if "mujoco" not in benchmark.requires:
        return {}
    return {**library_caches(environ), **rendering_environment(environ, worker=worker)}


def worker_environment(
    benchmark: Benchmark, environ: Mapping[str, str], *, worker: int, num_workers: int
) -> dict[str, str]:
    """The whole environment of worker `worker` of `num_workers`.

    One BLAS thread each; software rendering (llvmpipe) and Numba get an even share of the cores.
    """
    share = str(max(1, num_cores() // num_workers))
    return {
        **HUGE_PAGES,
        WORKER_GB: f"{worker_memory(num_workers) / 1e9:.2f}",
        **dict.fromkeys(RENDER_THREADS, share),
        **environ,
        **dict.fromkeys(BLAS_THREADS, "1"),
        **simulator_environment(benchmark, environ, worker=worker),
        "PYTHONPATH": python_path(),
    }
