"""`zoo.train` in several processes on this machine's CPUs: of `accelerate launch`, or forks that are told the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

import zoo.train
from tests.zoo.forks import as_ranks, free_port, launch_environment
from zoo.cli.main import guarded

CONFIGS = Path(__file__).parents[2] / "hyperparams" / "accelerate"
TINY = "policy_kwargs:{backbone_kwargs: {size: tiny}}"
TOY = ("--env", "Toy-Reach", "--num-threads", "1", "--device", "cpu")


def start(
    processes: int, arguments: Sequence[str], *, config: str = "cpu.yaml", launcher: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """`accelerate launch --num_processes N -m zoo.train ...`, in float32, in a session of its own."""
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / config)),
        *("--num_processes", str(processes), "--mixed_precision", "no"),
        *(launcher or ("--main_process_port", str(free_port()))),
        *("-m", "zoo.train", *arguments),
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def train(
    processes: int,
    arguments: Sequence[str],
    *,
    config: str = "cpu.yaml",
    precision: str = "no",
    run: Callable[[Sequence[str]], int] = zoo.train.run,
) -> str:
    """Let a command run to its end, in this process where it is one; what several forks said."""
    if processes == 1:
        assert run(arguments) == 0
        return ""
    launch = launch_environment(processes, CONFIGS / config, precision)
    return as_ranks(processes, lambda: guarded(run, arguments), **launch)


def finish(run: subprocess.Popen[str], timeout: float = 240.0) -> str:
    """Its output once it has ended well."""
    output, _ = run.communicate(timeout=timeout)
    assert run.returncode == 0, output
    return output


def updates(run: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl` that are updates, times left out."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if not key.startswith("time/")}
        for line in lines
        if "train/n_updates" in line
    ]


def only_run(folder: Path) -> Path:
    """The one run folder below a log folder."""
    (found,) = [path.parent for path in folder.glob("*/*/config.yml")]
    return found


def same_tensors(folder: Path, expected: Path, file: str, tolerance: float) -> None:
    """Assert that two folders hold the same tensors in `file`."""
    tensors, others = whole_tensors(folder, file), whole_tensors(expected, file)
    assert tensors.keys() == others.keys()
    worst = max(float(np.abs(tensors[key] - others[key].astype(float)).max(initial=0.0)) for key in tensors)
    assert worst < tolerance


def whole_tensors(folder: Path, file: str) -> dict[str, np.ndarray]:
    """The tensors of a file, or of those that ranks wrote instead: rows, put together by the offsets in headers."""
    if (folder / file).is_file():
        return load_file(folder / file)
    parts: dict[str, list[tuple[list[int], np.ndarray]]] = {}
    for path in folder.glob(f"{Path(file).stem}-*"):
        with safe_open(path, framework="np") as opened:
            offsets = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
        for name, part in load_file(path).items():
            parts.setdefault(name, []).append((offsets[name]["saved_offsets"], part))
    whole = {}
    for name, found in parts.items():
        found.sort(key=lambda row: (row[0], len(row[1]) if row[1].ndim else 0))
        rows = [len(part) if part.ndim else 0 for _, part in found]
        assert [sum(offset) for offset, _ in found] == [sum(rows[:number]) for number in range(len(rows))], name
        whole[name] = np.concatenate([part for _, part in found]) if found[0][1].ndim else found[0][1]
    return whole


def first_checkpoint(run: Path) -> Path:
    """The oldest checkpoint of a run."""
    return min((run / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step_")))
