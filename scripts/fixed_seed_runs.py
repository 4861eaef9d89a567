"""Fixed-seed training runs whose results must not change when the code is only moved about or rewritten.

    python scripts/fixed_seed_runs.py /tmp/before.json          # in a checkout of the commit before
    python scripts/fixed_seed_runs.py /tmp/after.json           # in this one, on the same machine
    python scripts/fixed_seed_runs.py --compare /tmp/before.json /tmp/after.json

Each run is a subprocess of the checkout it is called in. What is kept of it: SHA-256 of `metrics.jsonl` without times
and speeds, and of the weights of every checkpoint and of `best/`. `--only toy` leaves the simulators out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path.cwd()
SHORT = ("--seed", "3", "--device", "cpu", "--num-threads", "1")
TOY = (*SHORT, "--env", "Toy-Reach", "--num-envs", "16", "-n", "2048", "--save-freq", "700", "--eval-freq", "900")
TOY_GRPO = ("-params", "group_size:4", "batch_size:32")
TOY_PPO = ("-params", "n_steps:8", "batch_size:32")
WINDOW = (*SHORT, "--env", "MetaWorld/window-close")


def runs(folder: Path) -> list[tuple[str, str, int, list[str]]]:
    """(name, module, processes, arguments) in the order they are made; later ones may read what earlier ones wrote."""
    demos, sft = folder / "demos", folder / "window-sft"
    libero = [*SHORT, "--algo", "grpo", "--env", "LIBERO-Spatial", "--eval-episodes", "2", "--save-freq", "1000"]
    libero += ["--policy", "nano", "--num-envs", "4", "-params", "group_size:4"]
    return [
        ("toy-ppo", "zoo.train", 1, ["--algo", "ppo", *TOY, *TOY_PPO]),
        ("toy-grpo", "zoo.train", 1, ["--algo", "grpo", *TOY, *TOY_GRPO]),
        ("toy-ppo-2", "zoo.train", 2, ["--algo", "ppo", *TOY, *TOY_PPO]),
        ("toy-grpo-2", "zoo.train", 2, ["--algo", "grpo", *TOY, *TOY_GRPO]),
        ("toy-ppo-resumed", "zoo.train", 1, ["-i", "FIRST:toy-ppo"]),
        ("toy-grpo-resumed", "zoo.train", 1, ["-i", "FIRST:toy-grpo"]),
        ("toy-ppo-2-resumed", "zoo.train", 2, ["-i", "FIRST:toy-ppo-2"]),
        ("toy-grpo-2-resumed", "zoo.train", 2, ["-i", "FIRST:toy-grpo-2"]),
        ("toy-flow", "zoo.train", 1, ["--algo", "ppo", "--policy", "nano-flow", *TOY, *TOY_PPO]),
        (
            "demos",
            "zoo.collect",
            0,
            ["--env", "MetaWorld/window-close", "--expert", "-n", "3", "-o", str(demos)],
        ),
        (
            "window-sft",
            "zoo.sft",
            1,
            [*WINDOW, "--dataset", str(demos), "-n", "6", "--eval-freq", "3", "--eval-episodes", "2"],
        ),
        (
            "window-ppo",
            "zoo.train",
            1,
            [
                *("--algo", "ppo", *WINDOW, "--policy", f"BEST:{sft.name}", "-n", "2000", "--num-envs", "4"),
                *("--eval-episodes", "2", "--save-freq", "800", "-params", "n_steps:25", "batch_size:50"),
            ],
        ),
        ("window-ppo-resumed", "zoo.train", 1, ["-i", "FIRST:window-ppo"]),
        ("libero-grpo", "zoo.train", 1, [*libero, "-n", "2000"]),
        ("libero-grpo-resumed", "zoo.train", 1, ["-i", "FIRST:libero-grpo"]),
    ]


def main() -> int:
    """Make the runs, or compare what two checkouts made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="file for the results (JSON)")
    parser.add_argument("--only", default="", help="runs whose name begins so; several after commas")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    args = parser.parse_args()
    if args.compare:
        return compare(*args.compare)
    if args.out is None:
        parser.error("name the file to write")
    results: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, module, processes, arguments in runs(folder):
            if not name.startswith(tuple(args.only.split(","))):
                continue
            began = time.perf_counter()
            results[name] = make(folder, name, module, processes, arguments)
            print(f"{name:20} {time.perf_counter() - began:6.1f} s  {results[name]}", flush=True)
            args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


def make(folder: Path, name: str, module: str, processes: int, arguments: list[str]) -> dict[str, str]:
    """One run, and the hashes of what it wrote."""
    words = [filled(one, folder) for one in arguments]
    command = [sys.executable, "-m", module, *words]
    if processes > 1:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        launch = ROOT / "hyperparams" / "accelerate" / "cpu.yaml"
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(launch)]
        command += ["--num_processes", str(processes), "--main_process_port", str(port), "-m", module, *words]
    if processes:
        command += ["-f", str(folder / name)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    if not processes:
        return {"frames": tree_hash(folder / name, "*.parquet")}
    run = run_of(folder, name)
    return {"metrics": metrics_hash(run), "weights": tree_hash(run, "*.safetensors")}


def filled(word: str, folder: Path) -> str:
    """`FIRST:<run>` -> that run's first checkpoint, `BEST:<run>` -> its best policy."""
    kind, colon, name = word.partition(":")
    if not colon or kind not in ("FIRST", "BEST"):
        return word
    run = run_of(folder, name)
    if kind == "BEST":
        return str(run / "best")
    return str(min((run / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step_"))))


def run_of(folder: Path, name: str) -> Path:
    """The one run folder below `folder/name`."""
    (config,) = (folder / name).glob("*/*/config.yml")
    return config.parent


def metrics_hash(run: Path) -> str:
    """SHA-256 of `metrics.jsonl` without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [{key: value for key, value in line.items() if "time" not in key.split("/")[0]} for line in lines]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def tree_hash(folder: Path, pattern: str) -> str:
    """SHA-256 over every file below `folder` that matches, with its place."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob(pattern)):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def compare(before: Path, after: Path) -> int:
    """Say which runs are the same; 1 where any differs or is missing."""
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    differ = 0
    for name in one:
        same = one[name] == other.get(name)
        differ += not same
        print(f"{name:20} {'same' if same else f'DIFFERS: {one[name]} -> {other.get(name)}'}")
    return int(differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
