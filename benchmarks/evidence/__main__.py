"""Is reinforcement learning worth it? Its policy against the imitation that the same effort would have bought.

    python -m benchmarks.evidence MetaWorld/window-open              # three seeds, files under evidence-work/
    python -m benchmarks.evidence MetaWorld/window-open --seeds 3 4  # these seeds; what is done is not repeated
    python -m benchmarks.evidence --table                            # of the kept records, nothing is run

For every seed demonstrations are collected, a policy is fine-tuned on them (recipes of `hyperparams/agents.yml`) and
trained on by PPO and GRPO. Controls stand beside them:

* `longer`: fine-tuning on the same demonstrations, for as much processor time as fine-tuning and the longest of the
  trainings took together, evaluations apart;
* `more`: fine-tuning for as many updates on more demonstrations, as many as the simulator steps of reinforcement
  learning would have bought, with noise of 0.1 at least;
* `dagger`: fine-tuning for as many updates on as many episodes that the fine-tuned policy begins and the expert ends.

Three splits: demonstrations and training see `train`. Everything is chosen on `validation`: the best of eight policies
on the way of each training and of the controls, and how each policy's actions are decoded. `test` is played once, from
start states that recipes were not chosen on either. Rates are means over seeds with a 95 % interval of Student's t over
seeds. What a trial came to is a small file in the folder of records (`--records`).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.agents import read_recipes
from benchmarks.evidence.outcomes import Outcomes
from benchmarks.evidence.table import table
from benchmarks.evidence.trial import CONTROLS, Trial
from zoo.files import packaged_folder
from zoo.runs.folder import folder_name

RECORDS = Path(__file__).with_name("records")


def main() -> None:
    """Entry point."""
    recipes = {one.env: one for one in read_recipes(packaged_folder("hyperparams") / "agents.yml") if one.algorithms}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV", help="environments (default: all that have a recipe)")
    parser.add_argument("-o", "--output", type=Path, default=Path("evidence-work"), help="where everything goes")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR", help="where outcomes are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="S")
    parser.add_argument("--algos", nargs="+", choices=("ppo", "grpo"), default=["ppo", "grpo"])
    parser.add_argument("--controls", nargs="+", choices=CONTROLS, default=list(CONTROLS))
    parser.add_argument("--test-starts", type=int, default=300, metavar="N", help="start states of a test")
    parser.add_argument("--table", action="store_true", help="print the table of the kept records, run nothing")
    args = parser.parse_args()
    if unknown := set(args.envs) - recipes.keys():
        raise SystemExit(f"no recipe for {sorted(unknown)}, known: {sorted(recipes)}")
    if not args.table:
        args.records.mkdir(parents=True, exist_ok=True)
        for env in args.envs or recipes:
            algorithms = [algo for algo in args.algos if algo in recipes[env].algorithms]
            for seed in args.seeds:
                trial = Trial(
                    replace(recipes[env], seed=seed, algorithms=algorithms),
                    args.output,
                    args.controls,
                    args.test_starts,
                )
                trial.train()
                trial.outcomes().save(args.records / f"{folder_name(env)}_{seed}.json")
    kept = [Outcomes.load(path) for path in sorted(args.records.glob("*.json"))]
    chosen = [one for one in kept if one.env in (args.envs or recipes)]
    if not chosen:
        raise SystemExit(f"no outcomes in {args.records} yet; without --table they are made")
    try:
        print(table(chosen))
    except ValueError as error:
        raise SystemExit(f"{error}; the outcomes in {args.records} are kept, name another folder for these") from error


if __name__ == "__main__":
    main()
