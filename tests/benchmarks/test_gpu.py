"""`benchmarks.gpu` on a CPU: every part of the way there, no figure of interest."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import exit_code, main, measure
from benchmarks.gpu.apart import run_apart
from benchmarks.gpu.settings import Figures, Settings, Skipped, settings_of
from benchmarks.gpu.stages import Stage

CPU = torch.device("cpu")
TINY = settings_of("tiny", CPU, 2)


@pytest.mark.processes
def test_a_stage_that_fails_fails_alone() -> None:
    def refuse() -> Figures:
        raise Skipped("no such library")

    def fail() -> Figures:
        raise RuntimeError("CUDA out of memory\nand more")

    def crash() -> Figures:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def leave() -> Figures:
        os._exit(3)

    def hang() -> Figures:
        time.sleep(60)
        return {}

    found = [run_apart("x", action, 30.0) for action in (lambda: {"steps/s": 2.5}, refuse, fail, crash, leave)]
    found.append(run_apart("x", hang, 0.2))
    assert [(one.status, one.reason) for one in found] == [
        ("measured", ""),
        ("skipped", "no such library"),
        ("failed", "RuntimeError: CUDA out of memory"),
        ("failed", "ended by SIGKILL"),
        ("failed", "ended with exit code 3"),
        ("failed", "not done in 0 s"),
    ]
    assert found[0].figures == {"steps/s": 2.5}


def stage(*figures: tuple[str, float], optional: bool = False) -> Stage:
    def run(settings: Settings) -> Figures:
        if not figures:
            raise ValueError("nothing")
        return dict(figures)

    return Stage(run=run, limit=30.0, optional=optional)


@pytest.mark.processes
def test_the_exit_code_is_of_stages_that_should_work() -> None:
    stages = {"good": stage(("a", 1.0)), "graph:x": stage(optional=True)}
    outcomes = list(measure(stages, TINY, 60.0))
    assert [one.status for one in outcomes] == ["measured", "failed"]
    assert exit_code(outcomes) == 0
    assert exit_code(measure({**stages, "bad": stage()}, TINY, 60.0)) == 1
    (late,) = measure({"good": stages["good"]}, TINY, -1.0)
    assert (late.status, exit_code([late])) == ("skipped", 0)


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--size", "tiny", "--device", "cpu", "-o", str(tmp_path), "--stages"]
    assert main([*flags, "peaks", "act:nano", "update:openvla-oft", "graph:nano"]) == 0
    said = capsys.readouterr().out
    document = json.loads((tmp_path / "gpu.json").read_text())
    statuses = {one["name"]: one["status"] for one in document["stages"]}
    assert statuses.pop("graph:nano") == "skipped"
    assert set(statuses.values()) == {"measured"}
    assert set(statuses) == {"peaks", "update:openvla-oft", "act:nano"}
    assert document["machine"]["size"] == "tiny"
    assert (tmp_path / "gpu.md").read_text() in said + "\n"
    assert "graph:nano: skipped, a CPU has no CUDA graphs" in said


@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize("argv", [["--size", "full"], ["--device", "cuda:1"], ["--minutes", "0"]])
def test_what_cannot_be_measured_is_one_line(
    argv: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*argv, "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert argv[0] in error
    assert error.count("\n") == 1
