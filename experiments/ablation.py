"""Ablations of PPO and GRPO: one option changed at a time, several seeds, a markdown table.

    python -m experiments.ablation --steps 40000 --seeds 5 --results ablation.jsonl
    python -m experiments.ablation --env MetaWorld/window-open --policy agents/sft/MetaWorld-window-open --only GRPO \
        --steps 150000 --seeds 3 --results window.jsonl
    python -m experiments.ablation --policy start/best --only "PPO.*(recipe|imitation)" --bc-dataset demos --steps 30000

Other flags go to `vla-zoo train`, e.g. `--eval-split validation`. A finished run is a line of the results file and is
not repeated, so it can be stopped and started again. Every run is the committed recipe of its algorithm
(`hyperparams/*.yml`), cut to `--steps` simulator steps so that differences still show; rates follow the shorter
schedule.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

VARIANTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "PPO, ratio per token (recipe)": ("ppo", {}),
    "PPO, ratio per action": ("ppo", {"logprob_level": "action"}),
    "PPO, ratio per chunk": ("ppo", {"logprob_level": "chunk"}),
    "PPO, clip-higher 0.28": ("ppo", {"clip_range_high": "0.28"}),
    "PPO, rewards per step": ("ppo", {"reward_level": "action", "gamma": "0.987"}),
    "PPO, critic not fitted first": ("ppo", {"critic_warmup_updates": "0"}),
    "PPO, imitation beside it, 0.01": ("ppo", {"bc_coef": "0.01"}),
    "PPO, imitation beside it, 0.1": ("ppo", {"bc_coef": "0.1"}),
    "PPO, imitation beside it, 1": ("ppo", {"bc_coef": "1"}),
    "GRPO, ratio per token, 0.2 / 0.28 (recipe)": ("grpo", {}),
    "GRPO, ratio per action": ("grpo", {"logprob_level": "action"}),
    "GRPO, ratio per chunk": ("grpo", {"logprob_level": "chunk"}),
    "GRPO, ratio per sequence, 3e-4 / 4e-4 (GSPO)": (
        "grpo",
        {"logprob_level": "sequence", "clip_range": "3.0e-4", "clip_range_high": "4.0e-4"},
    ),
    "GRPO, ratio per sequence, 0.02 / 0.028": (
        "grpo",
        {"logprob_level": "sequence", "clip_range": "0.02", "clip_range_high": "0.028"},
    ),
    "GRPO, advantage centred": ("grpo", {"advantage": "centred"}),
    "GRPO, advantage leave-one-out (RLOO)": ("grpo", {"advantage": "rloo"}),
    "GRPO, every token weighs the same (DAPO)": ("grpo", {"loss_weight": "token"}),
    "GRPO, constant divisor (Dr. GRPO's)": ("grpo", {"loss_weight": "constant"}),
    "GRPO, centred, constant divisor (Dr. GRPO)": ("grpo", {"advantage": "centred", "loss_weight": "constant"}),
    "GRPO, imitation beside it, 0.1": ("grpo", {"bc_coef": "0.1"}),
    "GRPO, no clip-higher": ("grpo", {"clip_range_high": "0.2"}),
    "GRPO, only groups of 25 to 75 % success": ("grpo", {"score_bounds": "[0.25, 0.75]"}),
    "GRPO, dead groups sampled anew (2 rounds)": ("grpo", {"resample_dead_groups": "2"}),
}
"""Row of the table -> algorithm and the settings that differ. 0.987 per step is 0.95 per chunk of four."""


def run(
    algo: str, settings: Mapping[str, str], steps: int, seed: int, start: Sequence[str] = ("--env", "Toy-Reach")
) -> dict[str, float]:
    """Train once in a process of its own; success of the last evaluation and the mean over training.

    `start`: the flags of the environment, of the weights to start from, and any other.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "zoo.train", "--algo", algo, *start, "-n", str(steps)]
        command += ["--seed", str(seed), "-f", folder, "--device", "cpu", "--no-eval-video"]
        if settings:
            command += ["-params", *(f"{name}:{value}" for name, value in settings.items())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr.strip()}")
        return read_run(next(Path(folder).glob(f"{algo}/*")))


def read_run(folder: Path) -> dict[str, float]:
    """`final`: success of the last evaluation; `training`: mean success over the training rollouts."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seen = [row["rollout/success_once"] for row in rows if "rollout/success_once" in row]
    last = json.loads((folder / "evaluation.json").read_text())
    return {"final": float(last["success"]["success"]), "training": mean(seen)}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: variants in their order, mean and range over seeds."""
    lines = ["| variant | final success, mean (lowest to highest) | success while training | seeds |"]
    lines.append("|---|---|---|---|")
    for name in VARIANTS:
        own = [one for one in results if one["variant"] == name]
        if not own:
            continue
        final, training = [one["final"] for one in own], [one["training"] for one in own]
        lines.append(
            f"| {name} | {mean(final):.3f} ({min(final):.3f} to {max(final):.3f}) | {mean(training):.3f} | {len(own)} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Do what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="Toy-Reach", help="environment whose recipes are changed")
    parser.add_argument("--policy", default=None, help="weights to start from; the recipe's without")
    parser.add_argument("--bc-dataset", default=None, help="demonstrations of the variants that imitate; none without")
    parser.add_argument("--steps", type=int, default=40_000, help="simulator steps of each run")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each variant, from 0")
    parser.add_argument("--results", type=Path, default=Path("ablation.jsonl"), help="one line for each run")
    parser.add_argument("--only", default="", help="variants whose name this regular expression is found in")
    parser.add_argument("--limit", type=int, default=None, help="at most so many runs now")
    args, others = parser.parse_known_args(argv)
    results = []
    if args.results.is_file():
        results = [json.loads(line) for line in args.results.read_text().splitlines()]
    done = {(one["variant"], one["steps"], one["seed"]) for one in results}
    chosen = [
        name
        for name, (_, settings) in VARIANTS.items()
        if re.search(args.only, name) and (args.bc_dataset or "bc_coef" not in settings)
    ]
    missing = [(name, seed) for seed in range(args.seeds) for name in chosen if (name, args.steps, seed) not in done]
    for name, seed in missing[: args.limit]:
        start = ["--env", args.env, *([] if args.policy is None else ["--policy", args.policy]), *others]
        algo, settings = VARIANTS[name]
        dataset = {"bc_dataset": args.bc_dataset} if "bc_coef" in settings else {}
        numbers = run(algo, {**settings, **dataset}, args.steps, seed, start)
        results.append({"variant": name, "steps": args.steps, "seed": seed, **numbers})
        with args.results.open("a") as file:
            file.write(json.dumps(results[-1]) + "\n")
    print(table([one for one in results if one["steps"] == args.steps]))


if __name__ == "__main__":
    main()
