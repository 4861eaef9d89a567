"""One seed of one environment, from nothing: see `Trial`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.agents import ALGORITHMS, AgentRecipe, Workshop, flags_of, params_of
from benchmarks.evidence.frozen import settings_of
from benchmarks.evidence.outcomes import Outcome, Outcomes
from vla_gym.reading import read_json_object
from vla_gym.registry import find_benchmark, num_tasks
from zoo.collect import STUDENT_SHARE
from zoo.config.run_config import benchmark_options, env_options
from zoo.demonstrations.lerobot_writer import PROGRESS_PATH
from zoo.runs.folder import RunFolder, folder_name
from zoo.runs.monitor import read_evaluations

CONTROLS = ("longer", "more", "dagger")
LEARNING_RATES = (3e-4, 1e-3, 3e-3)
"""Of longer imitation, the best on validation: as many settings as the recipes of reinforcement learning were chosen
among."""
DAGGER_ROUNDS = 3
"""Times that the student plays and the expert takes over; each learns from all episodes so far (Ross et al. 2011)."""
EXPERT_HORIZONS = 3
"""Horizons that the expert may take in further episodes, so that it finishes: one that is slow in some start states is
seen there, too. Students are tested within one."""
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
        self._finetune("sft", recipe.sft_updates, ["demonstrations"])
        for algo in recipe.algorithms:
            start = ("--policy", self.policy("sft"), *self._often(self._num_steps(algo)), *self._common(self.folder))
            own = ("-n", self._num_steps(algo)) if algo == "grpo" or (algo == "ppo" and recipe.n_timesteps) else ()
            shown = () if algo in ALGORITHMS else params_of([f"demonstrations:{self.folder / 'demonstrations'}"])
            self.step(algo, "train", "--algo", algo, "--env", recipe.env, *own, *start, *shown)
        # What a start costs is no part of an update.
        self._finetune(_START, 1, ["demonstrations"])
        timed = [algo for algo in recipe.algorithms if algo in ALGORITHMS]
        updates = longer_updates(self.costs(), recipe.sft_updates, timed)
        if "longer" in self.controls:
            for rate in LEARNING_RATES:
                self._finetune(f"longer-{rate:g}", updates, ["demonstrations"], "--learning-rate", rate)
        if "more" in self.controls:
            self._collect("further", self._num_further())
            self._finetune("more", updates, ["demonstrations", "further"])
        if "dagger" in self.controls:
            self._dagger(updates)
        for stage in self.stages:
            for one in self.candidates(stage):
                for decoding in DECODINGS:
                    self._play(one, "validation", decoding)
            self._play(self.chosen(stage), "test", self.decoding(self.chosen(stage)))

    def _dagger(self, updates: int) -> None:
        datasets, student = ["demonstrations"], "sft"
        for number in range(1, DAGGER_ROUNDS + 1):
            datasets.append(f"taken-over-{number}")
            leads = ("--student", self.policy(student), "--student-share", STUDENT_SHARE / EXPERT_HORIZONS)
            self._collect(datasets[-1], math.ceil(self._num_further() / DAGGER_ROUNDS), *leads)
            last = number == DAGGER_ROUNDS
            student = "dagger" if last else f"dagger-{number}"
            self._finetune(student, updates if last else self.recipe.sft_updates, datasets)

    def candidates(self, stage: str) -> tuple[str, ...]:
        """Policies among which a stage's is chosen on the validation split: the one that all begin from is one."""
        if stage == "sft":
            return ("sft",)
        trained = [f"longer-{rate:g}" for rate in LEARNING_RATES] if stage == "longer" else [stage]
        return (*trained, "sft")

    def chosen(self, stage: str) -> str:
        """The candidate that solves most of the validation split with its better decoding; the first of equals."""
        return max(self.candidates(stage), key=lambda one: max(self._on_validation(one).values()))

    def run(self, stage: str) -> Path:
        """Run folder of a training; all of `zoo.sft` but the first have a log folder of their own."""
        is_rl = stage in self.recipe.algorithms
        folder = self.folder / stage if is_rl or stage == "sft" else self.folder / stage / "sft"
        return folder / f"{folder_name(self.recipe.env)}_1"

    def policy(self, stage: str) -> Path:
        """The best on the validation split, or the last where it has not been played."""
        return self.run(stage) / "best"

    def decoding(self, stage: str) -> str:
        """The one that solves more of the validation split; the first where they solve as many."""
        solved = self._on_validation(stage)
        return max(DECODINGS, key=solved.__getitem__)

    def _on_validation(self, stage: str) -> Mapping[str, int]:
        return {one: sum(self._solved(stage, f"validation-{one}").values()) for one in DECODINGS}

    def outcomes(self, recipe: str) -> Outcomes:
        """Return the outcomes; every stage must have been tested. `recipe`: hash of the frozen one."""
        stages = {}
        for stage in self.stages:
            chosen, trained = self.chosen(stage), self.candidates(stage)[0]
            # Where nothing trained is better, the training was paid for all the same.
            minutes = cpu_minutes(self.costs(), trained if chosen == "sft" else chosen)
            curve = self._curve(stage) if stage in self.recipe.algorithms else {}
            trained_for = self.costs()[stage] / 60 if curve else 0.0
            solved = self._solved(chosen, "test")
            stages[stage] = Outcome(solved=solved, cpu_minutes=minutes, curve=curve, training_minutes=trained_for)
        return Outcomes(env=self.recipe.env, seed=self.recipe.seed, stages=stages, recipe=recipe)

    def _curve(self, algo: str) -> dict[str, float]:
        points = read_evaluations(RunFolder(self.run(algo)))
        return {str(one.steps): one.rate.mean for one in points}

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
        # Each round of DAgger has a seed of its own.
        seed = 10 * recipe.seed + (int(name[-1]) if student else 9 * further)
        env = ("--env", recipe.env, "--expert", *student, "-n", episodes, "--seed", seed)
        # A student brings its own images.
        params = [] if student else [*recipe.params, *recipe.collect_params]
        if further:
            params.append(f"env_kwargs:{{max_episode_steps: {EXPERT_HORIZONS * self._horizon()}}}")
        how = flags_of(noise=noise, wander=0.0 if student else recipe.wander)
        self.step(name, "collect", *env, *how, "-o", self.folder / name, *params_of(params))

    def _horizon(self) -> int:
        values = settings_of("ppo", self.recipe)
        return max(
            task.horizon for task in find_benchmark(self.recipe.env, **benchmark_options(env_options(values))).tasks
        )

    def _finetune(self, name: str, updates: int, datasets: Sequence[str], *settings: object) -> None:
        recipe, folders = self.recipe, [self.folder / one for one in datasets]
        arguments = (
            "--env",
            recipe.env,
            "--dataset",
            *folders,
            "-n",
            updates,
            *settings,
            *flags_of(privileged_coef=recipe.privileged_coef, paraphrases=recipe.paraphrases),
        )
        often = ("--eval-episodes", 0) if name in ("sft", _START) else self._often(updates)
        where = self._common(self.folder if name == "sft" else self.folder / name)
        self.step(name, "sft", *arguments, *often, *where, *params_of([*recipe.params, *recipe.sft_params]))

    def _common(self, folder: Path) -> tuple[object, ...]:
        return ("--seed", self.recipe.seed, "-f", folder, "--num-threads", 1)

    def _often(self, steps: int) -> tuple[object, ...]:
        options = [f"{name}:{value}" for name, value in VALIDATION_STARTS[_family(self.recipe.env)].items()]
        where = ("--eval-split", "validation", *(("--eval-env-kwargs", *options) if options else ()))
        return ("--eval-freq", math.ceil(steps / EVALUATIONS), "--eval-episodes", EVALUATED, *where)

    def _num_steps(self, algo: str) -> int:
        return int(settings_of(algo, self.recipe)["n_timesteps"])

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
    if stage == "more":
        before.append("further")
    elif stage == "dagger":
        before += [name for name in costs if name.startswith(("taken-over-", "dagger-"))]
    if stage not in ("sft", "more") and not stage.startswith("longer"):  # which begin with fresh weights
        before.append("sft")
    return sum(costs[one] for one in (*before, stage)) / 60
