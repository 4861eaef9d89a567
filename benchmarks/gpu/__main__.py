"""Everything worth knowing of a GPU in one command, at most ten minutes, no network.

    python -m benchmarks.gpu                 # on CUDA, at full size
    python -m benchmarks.gpu --size tiny     # the same way on a CPU, in minutes; its figures mean nothing
    python -m benchmarks.gpu --stages act update:pi0 -o results

It writes `gpu.json` and `gpu.md`, anew after every stage, and prints the latter. Exit code 1 if a stage failed that
should work.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.gpu.apart import Outcome, run_apart
from benchmarks.gpu.card import Peak, card_name, data_sheet
from benchmarks.gpu.report import markdown, with_shares
from benchmarks.gpu.settings import Figures, Settings, Size, Skipped, settings_of
from benchmarks.gpu.stages import SMALL_CARD, STAGES, Stage, check_budget, chosen, limited
from vla_gym.errors import VLAZooError
from vla_gym.system.limits import num_cores


def describe(device: torch.device) -> Figures:
    """The machine, asked in a child: this process must not touch the GPU."""
    memory = torch.cuda.get_device_properties(device).total_memory / 2**30 if device.type == "cuda" else 0.0
    return {"card": card_name(device), "memory, GiB": round(memory, 1)}


def measure(stages: Mapping[str, Stage], settings: Settings, seconds: float) -> Iterator[Outcome]:
    """Run the stages one after another; those for which no time is left are skipped."""
    until = time.monotonic() + seconds
    for name, stage in stages.items():
        left = until - time.monotonic()
        if left > 0:
            limit = min(stage.limit, left)
            outcome = run_apart(name, partial(limited, stage, settings), limit, optional=stage.optional)
        else:
            outcome = Outcome(name=name, status="skipped", seconds=0.0, reason="no time was left; --minutes gives more")
        reason = f": {outcome.reason}" if outcome.reason else ""
        print(f"{outcome.seconds:6.1f} s  {name:<22} {outcome.status}{reason}", file=sys.stderr, flush=True)
        yield outcome


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, print; return the exit code."""
    names = arguments.stages or (SMALL_CARD if arguments.memory else ())
    stages, seconds = chosen(names), check_budget(arguments.minutes)
    wanted = run_apart("device", partial(_device, arguments.device), 60.0)
    if wanted.status != "measured":
        raise Skipped(wanted.reason)
    device = torch.device(str(wanted.figures["device"]))
    size: Size = arguments.size or ("full" if device.type == "cuda" else "tiny")
    if size == "full" and device.type != "cuda":
        raise Skipped("--size full needs a CUDA device, and torch sees none; --size tiny runs on a CPU")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # as zoo.train and zoo.evaluate have it
    settings = replace(settings_of(size, device, num_cores()), memory=arguments.memory)
    machine = dict(run_apart("machine", partial(describe, device), 60.0).figures)
    machine |= {"size": size, "device": str(device), "cores": num_cores(), "python": platform.python_version()}
    machine |= {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    page, outcomes = "", []
    for outcome in measure(stages, settings, seconds):
        outcomes.append(outcome)
        page = write(machine, outcomes, arguments.out)
    print(page)
    return exit_code(outcomes)


def write(machine: Mapping[str, Any], outcomes: Sequence[Outcome], folder: Path) -> str:
    """Write what is known so far as `gpu.json` and `gpu.md`: a run that is cut short keeps it. Returns the page."""
    peak = data_sheet(str(machine["card"])) or _measured(outcomes)
    bounds = f"{peak.flops / 1e12:.4g} TFLOP/s, {peak.bandwidth / 1e9:.4g} GB/s ({peak.source})" if peak else "?"
    about, records = {**machine, "peak": bounds}, with_shares(outcomes, peak)
    page = markdown(about, records)
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": about, "stages": records}
    (folder / "gpu.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(page, encoding="utf-8")
    return page


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return 1 if a stage failed that should work."""
    return int(any(one.status == "failed" and not one.optional for one in outcomes))


def _device(asked: str) -> Figures:
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise Skipped(f"--device {asked}: torch sees no CUDA device")
    return {"device": str(torch.device(asked))}


def _measured(outcomes: Sequence[Outcome]) -> Peak | None:
    found = next((one.figures for one in outcomes if one.name == "peaks" and one.figures), None)
    if found is None:
        return None
    return Peak(float(found["FLOP/s"]), float(found["bytes/s"]), str(found["source"]))


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--size", choices=get_args(Size), help="full on CUDA, else tiny, by default")
    made.add_argument("--stages", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(STAGES)}; or a kind")
    made.add_argument("-o", "--out", type=Path, default=Path("gpu-results"), help="folder of gpu.json and gpu.md")
    made.add_argument("--device", default="auto", help="cuda, cuda:1, cpu")
    made.add_argument("--memory", type=float, metavar="GIB", help="act as a card of so much memory")
    made.add_argument("--minutes", type=float, default=10.0, help="for all stages together")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m benchmarks.gpu`."""
    try:
        return run(parser().parse_args(argv))
    except (VLAZooError, Skipped) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
