"""Is reinforcement learning worth it? Its policy against the imitation that the same effort would have bought.

    python -m benchmarks.evidence MetaWorld/window-open              # three seeds, files under evidence-work/
    python -m benchmarks.evidence MetaWorld/window-open --seeds 3 4  # these seeds; what is done is not repeated
    python -m benchmarks.evidence --table                            # of what is there, nothing is run

For every seed demonstrations are collected, a policy is fine-tuned on them (recipes of `hyperparams/agents.yml`) and
trained on by PPO and GRPO. Two controls stand beside them:

* `longer`: fine-tuning on the same demonstrations, for as much processor time as fine-tuning and the longest of the
  trainings took together, evaluations apart;
* `more`: fine-tuning for as many updates on more demonstrations, as many as the simulator steps of reinforcement
  learning would have bought, with noise of 0.1 at least (`--controls longer` leaves it out: it costs the most).

Three splits: demonstrations and training see `train`. Everything is chosen on `validation`: the best of eight policies
on the way of each training and of the controls, and how each policy's actions are decoded. `test` is played once, from
start states that recipes were not chosen on either. Rates are means over seeds with a 95 % interval of Student's t over
seeds; a row's p is of the exact sign-flip test over start states, all seeds together, against the control that solves
more, raised by Holm's method.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.agents import AgentRecipe, Workshop, params_of, privileged_of, read_recipes
from vla_gym.registry import num_tasks
from zoo.config.hyperparams import load_hyperparams
from zoo.evaluation.statistics import holm, sign_flip_exact
from zoo.files import packaged_folder
from zoo.runs.folder import folder_name

CONTROLS = ("longer", "more")
DECODINGS = ("mean", "likeliest")
"""Deterministic tokens: the one nearest the mean of the distribution, or the likeliest."""
VALIDATION_STARTS = {"MetaWorld": {"sampled_starts": 0}, "LIBERO": {"sampled_starts": 5}, "ManiSkill": {}}
"""Family -> options of its validation split; LIBERO's published start states are those of training."""
TEST_STARTS = {"MetaWorld": {"task_seed": 1000}, "LIBERO": {}, "ManiSkill": {"task_seed": 1_000_000}}
"""Family -> options of its test split: the usual one has been looked at when the recipes were made."""
EVALUATIONS = 8
"""Evaluations of one training, on the validation split; its best policy is taken."""
EVALUATED = 50
"""Episodes of each."""
LEAST_NOISE = 0.1
"""Of further demonstrations: without any an expert goes the same way from one start state twice."""
_T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Student's t of a number of seeds."""


class Trial(Workshop):
    """One seed: demonstrations, fine-tuning, reinforcement learning, the controls, and one test of each."""

    def __init__(self, recipe: AgentRecipe, folder: Path, controls: Sequence[str], num_test: int) -> None:
        super().__init__(recipe, folder / f"seed_{recipe.seed}")
        self.controls = tuple(controls)
        self._num_test = num_test

    @property
    def stages(self) -> tuple[str, ...]:
        """What is tested."""
        return ("sft", *self.controls, *self.recipe.algorithms)

    def train(self) -> None:
        """All steps; those that are done are left out."""
        recipe = self.recipe
        self._collect("demonstrations", recipe.demonstrations)
        self._finetune("sft", recipe.sft_updates, "demonstrations")
        for algo in recipe.algorithms:
            start = ("--policy", self.policy("sft"), *self._often(self._num_steps(algo)))
            self.step(algo, "train", "--algo", algo, "--env", recipe.env, *start, *self._common(self.folder))
        # What a start costs is no part of an update.
        self._finetune("start", 1, "demonstrations")
        updates = longer_updates(self.costs(), recipe.sft_updates, recipe.algorithms)
        if "longer" in self.controls:
            self._finetune("longer", updates, "demonstrations")
        if "more" in self.controls:
            steps = max(map(self._num_steps, recipe.algorithms))
            shown = read_info(self.folder / "demonstrations")
            self._collect("further", math.ceil(steps * shown["total_episodes"] / shown["total_frames"]))
            self._finetune("more", updates, "demonstrations", "further")
        for stage in self.stages:
            for decoding in DECODINGS:
                self._play(stage, "validation", decoding)
            self._play(stage, "test", self.decoding(stage))

    def policy(self, stage: str) -> Path:
        """The best on the validation split, or the last where it has not been played."""
        folder = self.folder / stage / "sft" if stage in CONTROLS else self.folder / stage
        return folder / f"{folder_name(self.recipe.env)}_1" / "best"

    def decoding(self, stage: str) -> str:
        """The one that solves more of the validation split; the first where they solve as many."""
        return max(DECODINGS, key=lambda one: sum(self._solved(stage, f"validation-{one}").values()))

    def test(self, stage: str) -> Mapping[str, bool]:
        """Start state of the test split -> whether it was solved."""
        return self._solved(stage, "test")

    def _solved(self, stage: str, name: str) -> dict[str, bool]:
        episodes = json.loads(self.result(stage, name).read_text())["episodes"]
        return {f"{one['task_id']}/{one['start_state']}": one["success_once"] for one in episodes}

    def _collect(self, name: str, episodes: int) -> None:
        recipe, further = self.recipe, name == "further"
        noise = max(recipe.noise, LEAST_NOISE) if further else recipe.noise
        arguments = ("--env", recipe.env, "--expert", "-n", episodes, "--seed", 2 * recipe.seed + further)
        params = params_of([*recipe.params, *recipe.collect_params])
        rest = (*(("--noise", noise) if noise else ()), "-o", self.folder / name, *params)
        self.step(name, "collect", *arguments, *rest)

    def _finetune(self, name: str, updates: int, *datasets: str) -> None:
        recipe, folders = self.recipe, [self.folder / one for one in datasets]
        arguments = ("--env", recipe.env, "--dataset", *folders, "-n", updates, *privileged_of(recipe))
        often = self._often(updates) if name in CONTROLS else ("--eval-episodes", 0)
        where = self._common(self.folder if name == "sft" else self.folder / name)
        self.step(name, "sft", *arguments, *often, *where, *params_of([*recipe.params, *recipe.sft_params]))

    def _common(self, folder: Path) -> tuple[object, ...]:
        return ("--seed", self.recipe.seed, "-f", folder, "--num-threads", 1)

    def _often(self, steps: int) -> tuple[object, ...]:
        options = [f"{name}:{value}" for name, value in VALIDATION_STARTS[_family(self.recipe.env)].items()]
        where = ("--eval-split", "validation", *(("--eval-env-kwargs", *options) if options else ()))
        return ("--eval-freq", math.ceil(steps / EVALUATIONS), "--eval-episodes", EVALUATED, *where)

    def _num_steps(self, algo: str) -> int:
        return int(load_hyperparams(algo, self.recipe.env, "nano").values["n_timesteps"])

    def _play(self, stage: str, split: str, decoding: str) -> None:
        family = _family(self.recipe.env)
        name, episodes, options = split, self._num_test, dict(TEST_STARTS[family])
        if split == "validation":
            name, episodes, options = f"{split}-{decoding}", EVALUATED, dict(VALIDATION_STARTS[family])
        elif family != "ManiSkill":  # which has 1000
            options["sampled_starts"] = math.ceil(episodes / num_tasks(self.recipe.env))
        params = [f"policy_kwargs:{{greedy: {decoding}}}"]
        if options:
            params.append(f"env_kwargs:{{{', '.join(f'{key}: {value}' for key, value in options.items())}}}")
        arguments = ("--env", self.recipe.env, "-i", self.policy(stage), "--split", split, "--eval-episodes", episodes)
        output = ("--num-envs", self.recipe.num_envs, "--num-threads", 1, "-o", self.result(stage, name))
        self.step(f"evaluate {stage} {name}", "evaluate", *arguments, *output, "-params", *params)


def _family(env: str) -> str:
    return re.split(r"[-/]", env)[0]


def read_info(dataset: Path) -> Mapping[str, Any]:
    """`meta/info.json` of a LeRobotDataset."""
    return json.loads((dataset / "meta" / "info.json").read_text())


def longer_updates(costs: Mapping[str, float], updates: int, algorithms: Sequence[str]) -> int:
    """Updates of fine-tuning that take as much processor time as these `updates` and the longest training together."""
    of_one = max(costs["sft"] - costs["start"], 1.0) / max(updates - 1, 1)
    return updates + math.ceil(max(costs[algo] for algo in algorithms) / of_one)


def over_seeds(rates: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of the width of its 95 % interval (Student's t over seeds); infinite for one seed."""
    if len(rates) < 2:
        return fmean(rates), math.inf
    return fmean(rates), _T_975[len(rates)] * stdev(rates) / math.sqrt(len(rates))


def p_value(control: Sequence[Mapping[str, bool]], trained: Sequence[Mapping[str, bool]]) -> float:
    """Of the exact sign-flip test over start states; a start state's difference is that of seeds that solve it."""
    starts = control[0].keys()
    if any(one.keys() != starts for one in (*control, *trained)):
        raise ValueError("a paired comparison needs the same start states on both sides and in every seed")
    return sign_flip_exact([sum(one[key] for one in trained) - sum(one[key] for one in control) for key in starts])


def table(trials: Mapping[str, Sequence[Trial]]) -> str:
    """Markdown: a row for each environment and algorithm; test split only."""
    rows, p_values = [], []
    for env, of_seeds in trials.items():
        tests = {stage: [trial.test(stage) for trial in of_seeds] for stage in of_seeds[0].stages}
        rates = {stage: [fmean(one.values()) for one in tests[stage]] for stage in tests}
        # What was fine-tuned least may be what was fine-tuned best.
        stronger = max((stage for stage in tests if stage in ("sft", *CONTROLS)), key=lambda one: fmean(rates[one]))
        for algo in of_seeds[0].recipe.algorithms:
            minutes = [fmean(_minutes(trial, stage) for trial in of_seeds) for stage in ("sft", stronger, algo)]
            p_values.append(p_value(tests[stronger], tests[algo]))
            shown = " | ".join(_shown(rates[one]) if one in rates else "" for one in ("sft", *CONTROLS, algo))
            cost = " / ".join(f"{one:.1f}" for one in minutes)
            rows.append(f"| {env} | {algo.upper()} | {len(of_seeds)} x {len(tests[algo][0])} | {shown} | {stronger} | ")
            rows[-1] += f"{{p:.2g}} | {cost} |"
    head = [
        "| environment | | seeds x start states | SFT | longer | more | after RL | stronger control | p (Holm) | "
        "CPU minutes: SFT / control / RL |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(row.format(p=p) for row, p in zip(rows, holm(p_values), strict=True))])


def _shown(rates: Sequence[float]) -> str:
    mean, half = over_seeds(rates)
    each = ", ".join(f"{100 * rate:.1f}" for rate in rates)
    return f"{100 * mean:.1f} % ({each})" if math.isinf(half) else f"{100 * mean:.1f} ± {100 * half:.1f} % ({each})"


def _minutes(trial: Trial, stage: str) -> float:
    """Processor minutes of one training, its evaluations on validation and its demonstrations included."""
    costs = trial.costs()
    shared = {"sft": ("demonstrations",), "longer": ("demonstrations",), "more": ("demonstrations", "further")}
    return sum(costs[one] for one in (*shared.get(stage, ("demonstrations", "sft")), stage)) / 60


def main() -> None:
    """Entry point."""
    recipes = {one.env: one for one in read_recipes(packaged_folder("hyperparams") / "agents.yml") if one.algorithms}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV", help="environments (default: all that have a recipe)")
    parser.add_argument("-o", "--output", type=Path, default=Path("evidence-work"), help="where everything goes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="S")
    parser.add_argument("--algos", nargs="+", choices=("ppo", "grpo"), default=["ppo", "grpo"])
    parser.add_argument("--controls", nargs="+", choices=CONTROLS, default=list(CONTROLS))
    parser.add_argument("--test-starts", type=int, default=300, metavar="N", help="start states of a test")
    parser.add_argument("--table", action="store_true", help="print the table of what is there, run nothing")
    args = parser.parse_args()
    if unknown := set(args.envs) - recipes.keys():
        raise SystemExit(f"no recipe for {sorted(unknown)}, known: {sorted(recipes)}")
    trials: dict[str, list[Trial]] = {}
    for env in args.envs or recipes:
        algorithms = [algo for algo in args.algos if algo in recipes[env].algorithms]
        for seed in args.seeds:
            recipe = replace(recipes[env], seed=seed, algorithms=algorithms)
            trial = Trial(recipe, args.output, args.controls, args.test_starts)
            if not args.table:
                trial.train()
            if all(trial.result(stage, "test").is_file() for stage in trial.stages):
                trials.setdefault(env, []).append(trial)
    print(table(trials))


if __name__ == "__main__":
    main()
