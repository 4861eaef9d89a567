"""`benchmarks.gpu` on a CPU: every part of the way there, no figure of interest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import exit_code, main, measure
from benchmarks.gpu.apart import Outcome, run_apart
from benchmarks.gpu.card import Peak, data_sheet
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.report import markdown, with_shares
from benchmarks.gpu.settings import Figures, Settings, Skipped, settings_of
from benchmarks.gpu.stages import STAGES, Stage, chosen
from vla_gym.errors import UnknownName

CPU = torch.device("cpu")
TINY = settings_of("tiny", CPU, 2)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("Voodoo 2", None),
    ],
)
def test_cards_are_known_by_the_words_of_their_names(name: str, flops: float | None) -> None:
    peak = data_sheet(name)
    assert (peak.flops if peak else None) == flops


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


def test_stages_are_chosen_by_name_or_kind() -> None:
    assert chosen(()) is STAGES
    assert list(chosen(["act", "peaks"])) == ["peaks", *(f"act:{family}" for family in MODELS)]
    assert list(chosen(["update:nano"])) == ["update:nano"]
    with pytest.raises(UnknownName, match=r"no stage 'steps:libro'.*steps:libero"):
        chosen(["steps:libro"])


def test_shares_are_of_the_card_s_bounds() -> None:
    # 30 of 120 TFLOP/s, 0.5 of 2 TB/s; the card's own measurement is no share of itself.
    peak = Peak(120e12, 2e12, "a data sheet")
    figures: Figures = {"FLOP/s": 30e12, "bytes/s": 0.5e12, "decisions/s": 4.0}
    outcomes = [
        Outcome(name="peaks", status="measured", seconds=1.0, figures=dict(figures)),
        Outcome(name="act:nano", status="measured", seconds=1.0, figures=dict(figures)),
        Outcome(name="act:pi0", status="failed", seconds=1.0, reason="CUDA out of memory"),
    ]
    first, second, third = with_shares(outcomes, peak)
    assert "of peak FLOP/s" not in first["figures"]
    assert second["figures"]["of peak FLOP/s"] == pytest.approx(0.25)
    assert second["figures"]["of peak bandwidth"] == pytest.approx(0.25)
    page = markdown({"card": "Voodoo 2"}, [first, second, third])
    assert "- card: Voodoo 2" in page
    assert "| decisions/s | 4 |" in page
    assert "| of peak FLOP/s | 25.0% |" in page
    assert "- act:pi0: failed, CUDA out of memory" in page


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_writes_both_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--size", "tiny", "--device", "cpu", "-o", str(tmp_path)]
    done = subprocess.run(
        [*command, "--stages", "peaks", "act", "update:openvla-oft", "graph:nano"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "gpu.json").read_text())
    statuses = {one["name"]: one["status"] for one in document["stages"]}
    assert statuses.pop("graph:nano") == "skipped"
    assert set(statuses.values()) == {"measured"}
    assert set(statuses) == {"peaks", "update:openvla-oft", *(f"act:{family}" for family in MODELS)}
    assert document["machine"]["size"] == "tiny"
    assert (tmp_path / "gpu.md").read_text() in done.stdout + "\n"
    assert "graph:nano: skipped, a CPU has no CUDA graphs" in done.stdout


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_runs_on_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--size", "tiny", "--device", "cuda", "-o", str(tmp_path)]
    done = subprocess.run([*command, "--stages", "act", "update"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
