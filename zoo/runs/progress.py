"""The screen: lines of the `zoo` loggers on stdout, and the progress bar of `-P` on stderr, below them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import ClassVar, TextIO

from tqdm import tqdm

LOGGER = logging.getLogger("zoo")
"""Parent of every module's logger."""


class Screen(logging.Handler):
    """Prints each record as it is, above the progress bar that is shown."""

    bar: tqdm[None] | None = None
    """The bar that is shown; one screen shows one at most."""
    on_error: ClassVar[Callable[[], None] | None] = None
    """Called where a record cannot be printed (the terminal is gone); None raises the `OSError`, as `print` does."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with nullcontext() if self.bar is None else self.bar.external_write_mode(file=self.bar.fp):
                sys.stdout.write(f"{self.format(record)}\n")
                sys.stdout.flush()
        except OSError:
            if Screen.on_error is None:
                raise
            Screen.on_error()


def log_to_screen() -> None:
    """Show what the `zoo` loggers report, from level INFO; a second call changes nothing."""
    if not any(isinstance(handler, Screen) for handler in LOGGER.handlers):
        LOGGER.addHandler(Screen())
    LOGGER.setLevel(logging.INFO)
    # Other libraries' handlers of the root logger would print every line twice.
    LOGGER.propagate = False


@contextmanager
def silent(*, on: bool = True) -> Iterator[None]:
    """Context manager that drops what the `zoo` loggers report: one rank of a run writes for all."""
    former = LOGGER.level
    if on:
        LOGGER.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        LOGGER.setLevel(former)


class Progress:
    """A bar on stderr: simulator steps done, time left, latest success. Does nothing when switched off."""

    def __init__(
        self, total: int, *, done: int = 0, on: bool | None, unit: str = "step", stream: TextIO | None = None
    ) -> None:
        """`on` None shows it where `stream` (stderr) is a terminal."""
        self._total = total
        self._bar: tqdm[None] | None = None
        file = stream or sys.stderr
        if file.isatty() if on is None else on:
            self._bar = Screen.bar = tqdm(
                total=total,
                initial=min(done, total),
                unit=unit,
                file=file,
                # A log file gets a line now and then.
                mininterval=0.5 if file.isatty() else 30.0,
                dynamic_ncols=True,
                smoothing=0.1,
            )

    def to(self, done: int) -> None:
        """Move the bar to `done` steps (a last rollout may pass the total; the bar does not)."""
        if self._bar is not None:
            self._bar.update(min(done, self._total) - self._bar.n)

    def note(self, text: str) -> None:
        """Show `text` behind the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            Screen.bar = None
