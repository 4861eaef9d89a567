"""One seed of one environment, from nothing: see `Trial`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.agents import AgentRecipe, Workshop, flags_of, params_of
from benchmarks.evidence.outcomes import Outcome, Outcomes
from vla_gym.reading import read_json_object
from vla_gym.registry import find_benchmark, num_tasks
from zoo.config.hyperparams import load_hyperparams
from zoo.config.run_config import benchmark_options
from zoo.demonstrations.lerobot_writer import PROGRESS_PATH
from zoo.runs.folder import folder_name

FURTHER = {"more": "further", "dagger": "taken-over"}
"""Control -> the episodes it learns from beside the demonstrations."""
CONTROLS = ("longer", *FURTHER)
_START = "start"
"""The step that measures what starting `zoo.sft` costs."""
DECODINGS = ("mean", "likeliest")
"""Deterministic tokens: the one nearest the mean of the distribution, or the likeliest."""
VALIDATION_STARTS = {"MetaWorld": {"sampled_starts": 0}, "LIBERO": {"sampled_starts": 5}, "ManiSkill": {}}
"""Family -> options of its validation split; LIBERO's published start states are those of training."""
TEST_STARTS = {"MetaWorld": {"task_seed": 4000}, "LIBERO": {}, "ManiSkill": {"task_seed": 1_000_000}}
"""Family -> options of its test split: the usual one has been looked at when the recipes were made, and Meta-World's of
the seeds 1000 to 3000 at earlier recipes of door-lock."""
EVALUATIONS = 8
"""Evaluations of one training, on the validation split; its best policy is taken."""
EVALUATED = 50
"""Episodes of each."""
LEAST_NOISE = 0.1
"""Of further demonstrations: without any an expert goes the same way from one start state twice."""


class Trial(Workshop):
    """One seed: demonstrations, fine-tuning, reinforcement learning, the controls, and one test of each."""

    def __init__(self, recipe: AgentRecipe, folder: Path, controls: Sequence[str], num_test: int) -> None:
        super().__init__(recipe, folder / f"seed_{recipe.seed}")
        self.controls = tuple(controls)
        self._num_test = num_test

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages that are tested."""
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
        self._finetune(_START, 1, "demonstrations")
        updates = longer_updates(self.costs(), recipe.sft_updates, recipe.algorithms)
        for control in self.controls:
            datasets = ["demonstrations"]
            if control in FURTHER:
                datasets.append(FURTHER[control])
                student = ("--student", self.policy("sft")) if control == "dagger" else ()
                self._collect(FURTHER[control], self._num_further(), *student)
            self._finetune(control, updates, *datasets)
        for stage in self.stages:
            for decoding in DECODINGS:
                self._play(stage, "validation", decoding)
            self._play(stage, "test", self.decoding(stage))

    def run(self, stage: str) -> Path:
        """Run folder of a training; all of `zoo.sft` but the first have a log folder of their own."""
        folder = self.folder / stage / "sft" if stage in (*CONTROLS, _START) else self.folder / stage
        return folder / f"{folder_name(self.recipe.env)}_1"

    def policy(self, stage: str) -> Path:
        """The best on the validation split, or the last where it has not been played."""
        return self.run(stage) / "best"

    def decoding(self, stage: str) -> str:
        """The one that solves more of the validation split; the first where they solve as many."""
        return max(DECODINGS, key=lambda one: sum(self._solved(stage, f"validation-{one}").values()))

    def outcomes(self) -> Outcomes:
        """Return the outcomes; every stage must have been tested."""
        stages = {
            stage: Outcome(solved=self._solved(stage, "test"), cpu_minutes=cpu_minutes(self.costs(), stage))
            for stage in self.stages
        }
        return Outcomes(env=self.recipe.env, seed=self.recipe.seed, stages=stages)

    def _solved(self, stage: str, name: str) -> dict[str, bool]:
        episodes = json.loads(self.result(stage, name).read_text())["episodes"]
        return {f"{one['task_id']}/{one['start_state']}": one["success_once"] for one in episodes}

    def _num_further(self) -> int:
        """Episodes of the expert for the simulator steps of reinforcement learning, the failures it takes included."""
        shown = read_json_object(self.folder / "demonstrations" / PROGRESS_PATH)
        played = benchmark_options(shown["settings"]["options"])
        horizon = max(task.horizon for task in find_benchmark(self.recipe.env, **played).tasks)
        spent = shown["frames"] + (shown["tried"] - shown["episodes"]) * horizon
        steps = max(map(self._num_steps, self.recipe.algorithms))
        return math.ceil(steps * shown["episodes"] / spent)

    def _collect(self, name: str, episodes: int, *student: object) -> None:
        recipe, further = self.recipe, name != "demonstrations"
        noise = max(recipe.noise, LEAST_NOISE) if further else recipe.noise
        env = ("--env", recipe.env, "--expert", *student, "-n", episodes, "--seed", 2 * recipe.seed + further)
        # A student brings its own images.
        params = () if student else params_of([*recipe.params, *recipe.collect_params])
        how = flags_of(noise=noise, wander=0.0 if student else recipe.wander)
        self.step(name, "collect", *env, *how, "-o", self.folder / name, *params)

    def _finetune(self, name: str, updates: int, *datasets: str) -> None:
        recipe, folders = self.recipe, [self.folder / one for one in datasets]
        arguments = (
            "--env",
            recipe.env,
            "--dataset",
            *folders,
            "-n",
            updates,
            *flags_of(privileged_coef=recipe.privileged_coef, paraphrases=recipe.paraphrases),
        )
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


def longer_updates(costs: Mapping[str, float], updates: int, algorithms: Sequence[str]) -> int:
    """Updates of fine-tuning that take as much processor time as these `updates` and the longest training together."""
    of_one = max(costs["sft"] - costs[_START], 1.0) / max(updates - 1, 1)
    return updates + math.ceil(max(costs[algo] for algo in algorithms) / of_one)


def cpu_minutes(costs: Mapping[str, float], stage: str) -> float:
    """Processor minutes of all that leads to a stage's policy, from the seconds that each step took."""
    before = ["demonstrations"]
    if stage in FURTHER:
        before.append(FURTHER[stage])
    if stage not in ("sft", "longer", "more"):  # which begin with fresh weights
        before.append("sft")
    return sum(costs[one] for one in (*before, stage)) / 60
