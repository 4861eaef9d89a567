from __future__ import annotations

import io
import logging

import pytest

from zoo.runs.progress import Progress, log_to_screen, silent

LOGGER = logging.getLogger("zoo.some.module")


def test_the_bar_stops_at_the_total_and_lines_go_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    progress = Progress(100, done=40, on=True, stream=stream)
    progress.to(70)
    progress.note("success 5%")
    LOGGER.info("a line")
    progress.to(130)
    progress.close()
    assert capsys.readouterr().out == "a line\n"
    assert "100/100" in stream.getvalue()
    assert "130" not in stream.getvalue()


def test_a_bar_that_is_off_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    progress = Progress(100, on=False, stream=stream)
    progress.to(70)
    progress.note("x")
    LOGGER.info("a line")
    progress.close()
    assert (capsys.readouterr().out, stream.getvalue()) == ("a line\n", "")


def test_lines_are_printed_once_by_the_rank_that_writes(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_screen()
    log_to_screen()
    with silent():
        LOGGER.warning("of another rank")
    with silent(on=False):
        LOGGER.warning("of the first")
    assert capsys.readouterr().out == "of the first\n"
