"""Commands log to the screen, also where a test calls one without `zoo.cli.main.guarded`."""

from __future__ import annotations

from zoo.runs.progress import log_to_screen

log_to_screen()
