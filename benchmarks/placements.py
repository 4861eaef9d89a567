"""Placements of four processes side by side: `python -m benchmarks.placements`.

Each trains nano by PPO on a toy whose simulator step sleeps 10 ms, so that simulation costs time and no core; every
process that simulates has two workers. Printed: decisions per second over whole updates, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACEMENTS: dict[str, tuple[str, ...]] = {
    "all": (),
    "separate": ("--placement", "env=0-1,rollout=2,actor=3"),
    "separate, 2 stages": ("--placement", "env=0-1,rollout=2,actor=3", "--pipeline-stages", "2"),
    "separate, 1 update ahead": ("--placement", "env=0-1,rollout=2,actor=3", "--max-staleness", "1"),
    "hybrid": ("--placement", "env=0-1,rollout=2-3,actor=0-3"),
    "hybrid, 2 stages": ("--placement", "env=0-1,rollout=2-3,actor=0-3", "--pipeline-stages", "2"),
}
RUN = (
    *("--algo", "ppo", "--gym-packages", "benchmarks.sleeping_toy", "--env", "Sleeping-Toy"),
    *("--num-envs", "16", "--seed", "0", "--device", "cpu", "--num-threads", "1", "--eval-episodes", "0"),
)
SETTINGS = ("n_steps:8", "chunk:4", "batch_size:64", "n_epochs:2", "num_workers:2")


def measure(settings: tuple[str, ...], updates: int) -> float:
    """Median decisions per second of a run's updates, the first left out."""
    with tempfile.TemporaryDirectory() as folder:
        steps = str(16 * 8 * 4 * updates - 1)
        command = [
            *(sys.executable, "-m", "accelerate.commands.launch"),
            *("--config_file", str(ROOT / "hyperparams" / "accelerate" / "cpu.yaml")),
            *("--num_processes", "4", "--main_process_port", "29577", "-m", "zoo.train"),
            *(*RUN, "-n", steps, "-f", folder, *settings, "-params", *SETTINGS),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
        (log,) = Path(folder).glob("*/*/metrics.jsonl")
        rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    rates = [row["time/decisions_per_second"] for row in rows if "time/decisions_per_second" in row]
    return statistics.median(rates[1:])


def main() -> None:
    """Print decisions per second by placement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=8)
    args = parser.parse_args()
    for name, settings in PLACEMENTS.items():
        print(f"  {name:<26}{measure(settings, args.updates):8.1f} decisions/s", flush=True)


if __name__ == "__main__":
    main()
