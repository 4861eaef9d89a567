"""The progress bar of `-P`: simulator steps done, time left, latest success."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm


class Progress:
    """A bar on stderr; prints lines above itself. Does nothing when switched off."""

    def __init__(
        self, total: int, *, done: int = 0, on: bool, unit: str = "step", stream: TextIO | None = None
    ) -> None:
        self._total = total
        self._bar: tqdm[None] | None = None
        if on:
            file = stream or sys.stderr
            self._bar = tqdm(
                total=total,
                initial=min(done, total),
                unit=unit,
                file=file,
                # A log file wants a line now and then, not a film.
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

    def wrap(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """`say`, with the bar taken away while it prints."""

        def said(text: str) -> None:
            if self._bar is None:
                say(text)
                return
            with tqdm.external_write_mode(file=self._bar.fp):
                say(text)

        return said

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
