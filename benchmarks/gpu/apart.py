"""One stage in a process of its own: a crash, a full card or a hang ends that stage alone."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

from benchmarks.gpu.settings import Figures, Skipped

Status = Literal["measured", "skipped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a stage."""

    name: str
    status: Status
    seconds: float
    figures: Figures = field(default_factory=dict)
    reason: str = ""
    """Why it was skipped, or how it failed; one line."""
    optional: bool = False
    """Whether its failure is no failure of the benchmark."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_apart(name: str, action: Callable[[], Figures], limit: float, *, optional: bool = False) -> Outcome:
    """Run `action` in a forked process, which this one must not have touched a GPU for; `limit` is in seconds."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(action, there), name=name)
    started = time.perf_counter()
    child.start()
    there.close()
    try:
        answer = here.recv() if here.poll(limit) else ("failed", {}, f"not done in {limit:.0f} s")
    except EOFError:
        child.join()
        answer = ("failed", {}, _ending(child.exitcode or 0))
    if child.is_alive():
        child.join(1.0)
        child.kill()
    child.join()
    status, figures, reason = answer
    seconds = time.perf_counter() - started
    return Outcome(name=name, status=status, seconds=seconds, figures=figures, reason=reason, optional=optional)


def _work(action: Callable[[], Figures], answer: Connection) -> None:
    try:
        answer.send(("measured", action(), ""))
    except Skipped as skipped:
        answer.send(("skipped", {}, str(skipped)))
    except Exception as error:  # noqa: BLE001  any failure is this stage's alone
        traceback.print_exc()
        answer.send(("failed", {}, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"))


def _ending(exit_code: int) -> str:
    return f"ended by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
