from __future__ import annotations

import io

from zoo.runs.progress import Progress


def test_the_bar_stops_at_the_total_and_lines_go_above_it() -> None:
    stream, said = io.StringIO(), list[str]()
    progress = Progress(100, done=40, on=True, stream=stream)
    progress.to(70)
    progress.note("success 5%")
    progress.wrap(said.append)("a line")
    progress.to(130)
    progress.close()
    assert said == ["a line"]
    assert "100/100" in stream.getvalue()
    assert "130" not in stream.getvalue()


def test_a_bar_that_is_off_is_silent() -> None:
    stream, said = io.StringIO(), list[str]()
    progress = Progress(100, on=False, stream=stream)
    progress.to(70)
    progress.note("x")
    progress.wrap(said.append)("a line")
    progress.close()
    assert (said, stream.getvalue()) == (["a line"], "")
