"""The shipped agents from nothing: demonstrations -> SFT -> PPO and GRPO, compared on the same start states.

    python -m benchmarks.agents                                  # every agent of hyperparams/agents.yml
    python -m benchmarks.agents MetaWorld/window-close -o work   # one environment, files under work/
    python -m benchmarks.agents --ship agents                    # and copy the policies to agents/<algo>/<env>/
    python -m benchmarks.agents --jobs 4                         # four environments at a time, a core each

Each step is one command of `zoo`, printed as it runs, with one thread; a step that is done is not repeated, a training
that was stopped (SIGTERM) is gone on with, and what was cut off starts anew, so the script can be started again. What
another recipe has left in the folder is refused. The table says what every step cost in seconds of CPU, workers
included. Settings of the environments and algorithms are the recipes of `hyperparams/{ppo,grpo}.yml`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from zoo.evaluation.statistics import Comparison, Outcomes, compare, outcomes_of
from zoo.files import packaged_folder
from zoo.runs.folder import folder_name

ALGORITHMS = ("ppo", "grpo")
_COLLECT = "collect"
"""Name of the step that collects, or how the names of several begin."""
_WORDS = "words"
"""Name of the step in which a policy's words begin anew."""
_STOPPED = "stopped and saved"
"""Last words of `zoo.sft` and `zoo.train` when they were stopped; exit code 0."""
_SHIPPED = ("config.yml", "args.yml", "command.txt", "protocol.json")


@dataclass(frozen=True, kw_only=True)
class AgentRecipe:
    """One environment's way from nothing to a better policy."""

    env: str
    """Environment id."""
    demonstrations: int
    """Episodes of the expert."""
    sft_updates: int
    """Updates of supervised fine-tuning."""
    noise: float = 0.0
    """Deviation of what disturbs the expert's actions."""
    wander: float = 0.0
    """Largest share of the horizon for which the arm is first moved at random."""
    draw_every: int = 0
    """`--draw-every` of `zoo.collect`; 0: every step is drawn."""
    demonstrations_seed: int = 0
    """Of noise and wandering."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name -> fields of the recipe that differ there, the environment being that of the name unless they have an `env`:
    each is collected from by itself, and all are learned together. Empty: from `env` alone."""
    params: Sequence[str] = ()
    """`-params` of `zoo.collect` and `zoo.sft` over the PPO recipe's environment and policy, e.g. larger images."""
    collect_params: Sequence[str] = ()
    """More of `zoo.collect` alone, e.g. start states."""
    sft_params: Sequence[str] = ()
    """More of `zoo.sft` alone."""
    privileged_coef: float = 0.0
    """`--privileged-coef` of `zoo.sft`."""
    paraphrases: str = ""
    """`--paraphrases` of `zoo.sft`, from the root of a checkout; none by default."""
    words_updates: int = 0
    """Updates that follow: its words begin anew, as `words: wordllama`, with the paraphrases."""
    words_rate: float = 5e-4
    """Learning rate of these."""
    words_privileged_coef: float = 0.0
    """`--privileged-coef` of these."""
    evaluation_params: Sequence[str] = ()
    """`-params` of the comparison's `zoo.evaluate`, e.g. to play the usual start states instead of training's."""
    algorithms: Sequence[str] = ALGORITHMS
    """Algorithms that go on from the fine-tuned policy."""
    n_timesteps: int | None = None
    """Simulator steps of these; None: as their recipes say."""
    validation: Sequence[str] = ()
    """Flags of `zoo.train` that evaluate on the validation split; the best policy is then the agent. None: the last
    policy is."""
    splits: Sequence[str] = ("train", "test")
    """Start states of the comparison."""
    episodes: int | None = None
    """Start states compared of each split; all of them by default."""
    num_envs: int = 16
    """Simulators of an evaluation."""
    seed: int = 1
    """Of SFT, PPO and GRPO."""


def read_recipes(path: Path) -> list[AgentRecipe]:
    """From `hyperparams/agents.yml`; raises `SystemExit` for a field that does not exist."""
    known = {one.name for one in fields(AgentRecipe)}
    recipes = []
    for env, values in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        if unknown := values.keys() - known:
            raise SystemExit(f"{path}, {env}: no field {sorted(unknown)}, known: {sorted(known)}")
        recipes.append(AgentRecipe(env=env, **values))
    return recipes


class Workshop:
    """Runs the steps of one recipe in a folder of its own under `folder`; `costs` tells what each took."""

    def __init__(self, recipe: AgentRecipe, folder: Path) -> None:
        self.recipe = recipe
        self.folder = folder / folder_name(recipe.env)
        self.folder.mkdir(parents=True, exist_ok=True)

    def train(self) -> None:
        """All steps."""
        recipe, env = self.recipe, ("--env", self.recipe.env)
        datasets = [self._show(name, part) for name, part in self.parts().items()]
        common = ("--seed", recipe.seed, "-f", self.folder, "--num-threads", 1)
        learned = (*env, "--dataset", *datasets, "--eval-episodes", 0)
        others = flags_of(paraphrases=recipe.paraphrases)
        self.step(
            "sft",
            "sft",
            *learned,
            "-n",
            recipe.sft_updates,
            *flags_of(privileged_coef=recipe.privileged_coef),
            *(() if recipe.words_updates else others),
            *common,
            *params_of([*recipe.params, *recipe.sft_params]),
        )
        if recipe.words_updates:
            trained = ("--policy", self._last(self.run("sft")))
            anew = ("-n", recipe.words_updates, "--learning-rate", recipe.words_rate, *trained)
            where = ("--seed", recipe.seed, "-f", self.folder / _WORDS, "--num-threads", 1)
            words = params_of([*recipe.params, "policy_kwargs:{backbone_kwargs: {words: wordllama}}"])
            coef = flags_of(privileged_coef=recipe.words_privileged_coef)
            self.step(_WORDS, "sft", *learned, *anew, *coef, *others, *where, *words)
        self.evaluate("sft")
        for algo in recipe.algorithms:
            start = ("--policy", self.policy("sft"), *flags_of(n_timesteps=recipe.n_timesteps or 0), *recipe.validation)
            self.step(algo, "train", "--algo", algo, *env, *start, *common)
            self.evaluate(algo)

    def parts(self) -> Mapping[str, AgentRecipe]:
        """Return the recipe of each part that is collected by itself, by name; the whole recipe is "" without parts."""
        parts = self.recipe.parts
        return {name: replace(self.recipe, **{"env": name, "parts": {}, **own}) for name, own in parts.items()} or {
            "": self.recipe
        }

    def _show(self, name: str, part: AgentRecipe) -> Path:
        """Have the expert show one part; return the dataset's folder."""
        folder = self.folder / "demonstrations" / folder_name(name)
        how = flags_of(noise=part.noise, wander=part.wander, draw_every=part.draw_every, seed=part.demonstrations_seed)
        shown = (*how, "-o", folder, *params_of([*part.params, *part.collect_params]))
        step = f"{_COLLECT} {folder_name(name)}".rstrip()
        self.step(step, "collect", "--env", part.env, "--expert", "-n", part.demonstrations, *shown)
        return folder

    def run(self, stage: str) -> Path:
        """Run folder of a training."""
        stage = f"{_WORDS}/sft" if stage == _WORDS else stage
        return self.folder / stage / f"{folder_name(self.recipe.env)}_1"

    def policy(self, stage: str) -> Path:
        """Folder of the policy that a stage ended with: the newest checkpoint, or the best by `validation`."""
        if stage == "sft" and self.recipe.words_updates:
            stage = _WORDS
        run = self.run(stage)
        return run / "best" if self.recipe.validation and stage in ALGORITHMS else self._last(run)

    def _last(self, run: Path) -> Path:
        steps = sorted((run / "checkpoints").glob("step_*"), key=lambda one: int(one.name[5:]))
        return steps[-1] if steps else run / "best"

    def evaluate(self, stage: str) -> None:
        """The likeliest actions on every start state of every split."""
        for split in self.recipe.splits:
            target = ("--split", split, "-o", self.result(stage, split))
            how = ("--num-envs", self.recipe.num_envs, "--num-threads", 1)
            some = ("--eval-episodes", self.recipe.episodes) if self.recipe.episodes else ()
            params = params_of(self.recipe.evaluation_params)
            policy = ("--env", self.recipe.env, "-i", self.policy(stage))
            self.step(f"evaluate {stage} {split}", "evaluate", *policy, *target, *some, *how, *params)

    def result(self, stage: str, split: str) -> Path:
        """JSON of `zoo.evaluate`."""
        return self.folder / f"{stage}-{split}.json"

    def comparison(self, stage: str) -> Comparison:
        """SFT against what came of it."""
        return compare(self._outcomes("sft"), self._outcomes(stage))

    def _outcomes(self, stage: str) -> Outcomes:
        return outcomes_of([json.loads(self.result(stage, split).read_text()) for split in self.recipe.splits])

    def step(self, name: str, command: str, *arguments: object) -> None:
        """Run `python -m zoo.<command>` unless it is done; its output goes to `<name>.log`.

        A training that was stopped and saved is gone on with. One that was cut off starts anew: what it left in
        `<name>/` would be taken for the whole of it.
        """
        argv = [sys.executable, "-m", f"zoo.{command}", *map(str, arguments)]
        line = shlex.join(["python", *argv[1:]])
        before = self._begun().get(name, {"command": line, "cpu_seconds": 0.0})
        if before["command"] != line:
            raise SystemExit(
                f"'{name}' in {self.folder} was made by another recipe:\n  {before['command']}\nnow it is:\n  {line}\n"
                "move the folder away, or give another -o"
            )
        if name in self._done():
            return
        if before.get("stopped"):
            argv[3:] = ["-i", str(self.run(name))]
        else:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        print(shlex.join(["python", *argv[1:]]), flush=True)
        with (
            (self.folder / f"{name}.log").open("w") as log,
            subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT) as process,
        ):
            # Of this process and its workers alone, whatever else runs beside it.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}; see {self.folder / f'{name}.log'}")
        stopped = _STOPPED in (self.folder / f"{name}.log").read_text()
        seconds = round(before["cpu_seconds"] + usage.ru_utime + usage.ru_stime, 1)
        now = {"command": line, "cpu_seconds": seconds, **({"stopped": True} if stopped else {})}
        self._steps_file.write_text(json.dumps({**self._begun(), name: now}, indent=1) + "\n")
        if stopped:
            raise SystemExit(f"'{name}' was stopped and saved; repeat the command to go on with it")

    @property
    def _steps_file(self) -> Path:
        return self.folder / "steps.json"

    def _begun(self) -> Mapping[str, Mapping[str, Any]]:
        """Step -> its command, and what it took; of the steps that are done or were stopped."""
        return json.loads(self._steps_file.read_text()) if self._steps_file.is_file() else {}

    def _done(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: one for name, one in self._begun().items() if not one.get("stopped")}

    def costs(self) -> Mapping[str, float]:
        """Step -> seconds of CPU, workers included; of the steps that are done."""
        return {name: one["cpu_seconds"] for name, one in self._done().items()}

    def ship(self, target: Path) -> None:
        """Copy each stage's policy and what describes its run to `target/<stage>/<env>/`."""
        for stage in ("sft", *self.recipe.algorithms):
            folder = target / stage / folder_name(self.recipe.env)
            folder.mkdir(parents=True, exist_ok=True)
            policy = self.policy(stage)
            run = policy.parent if policy.name == "best" else policy.parent.parent
            for file in [
                policy / "manifest.json",
                policy / "config.json",
                policy / "model.safetensors",
                *(run / one for one in _SHIPPED),
            ]:
                shutil.copyfile(file, folder / file.name)
            summary = {split: self._summary(stage, split) for split in self.recipe.splits}
            (folder / "results.json").write_text(json.dumps(summary, indent=1) + "\n")

    def _summary(self, stage: str, split: str) -> Any:
        record = json.loads(self.result(stage, split).read_text())
        return {key: record[key] for key in ("summary", "success", "tasks")}


def params_of(values: Sequence[str]) -> tuple[str, ...]:
    """The command line's `-params`, nothing for none."""
    return ("-params", *values) if values else ()


def flags_of(**values: float | str) -> tuple[object, ...]:
    """Flags of a command line for all values but 0 and "": `noise=0.1` becomes `--noise 0.1`."""
    return tuple(part for name, value in values.items() if value for part in (f"--{name.replace('_', '-')}", value))


def table(shops: Sequence[Workshop]) -> str:
    """Markdown: a row per environment and algorithm."""
    lines = [
        "| environment | algorithm | demonstrations | SFT | after RL | gained / lost | p | CPU minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shop in shops:
        costs = shop.costs()
        collected = sum(seconds for name, seconds in costs.items() if name.startswith(_COLLECT))
        start, taught = shop.comparison("sft").before, (collected + costs["sft"] + costs.get(_WORDS, 0.0)) / 60
        shown = f"{sum(part.demonstrations for part in shop.parts().values())} | {_rate(start)}"
        if not shop.recipe.algorithms:
            lines.append(f"| {shop.recipe.env} | SFT alone | {shown} | | | | {taught:.1f} |")
        for algo in shop.recipe.algorithms:
            one = shop.comparison(algo)
            lines.append(
                f"| {shop.recipe.env} | {algo.upper()} | {shown} | {_rate(one.after)} | {one.gained} / {one.lost} | "
                f"{one.p_value:.1g} | {taught:.1f} + {costs[algo] / 60:.1f} |"
            )
    return "\n".join(lines)


def _rate(rate: Any) -> str:
    low, high = rate.interval
    return f"{rate.mean:.0%} [{low:.0%}, {high:.0%}] of {rate.episodes}"


def main() -> None:
    """Entry point."""
    recipes = read_recipes(packaged_folder("hyperparams") / "agents.yml")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV", help="environments (default: all of the recipes)")
    parser.add_argument("-o", "--output", type=Path, default=Path("agents-work"), help="where everything goes")
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="environments at a time")
    parser.add_argument("--ship", type=Path, metavar="DIR", help="copy the policies there")
    args = parser.parse_args()
    known = {one.env: one for one in recipes}
    if unknown := set(args.envs) - known.keys():
        raise SystemExit(f"no recipe for {sorted(unknown)}, known: {sorted(known)}")
    shops = [Workshop(known[env], args.output) for env in args.envs or known]

    def make(shop: Workshop) -> None:
        shop.train()
        if args.ship:
            shop.ship(args.ship)

    with ThreadPoolExecutor(max(1, args.jobs)) as pool:
        list(pool.map(make, shops))
    print(table(shops))
    total = sum(sum(shop.costs().values()) for shop in shops)
    print(f"\nCPU time of everything, evaluations included: {total / 60:.0f} minutes")


if __name__ == "__main__":
    main()
