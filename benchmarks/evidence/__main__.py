"""Is reinforcement learning worth it? Its policy against the imitation that the same effort would have bought.

    python -m benchmarks.evidence MetaWorld/window-open --freeze     # write the recipe down; commit that file
    python -m benchmarks.evidence MetaWorld/window-open              # five seeds, files under evidence-work/
    python -m benchmarks.evidence MetaWorld/window-open --seeds 3 4  # these seeds; what is done is not repeated
    python -m benchmarks.evidence --table --curves curves.png        # of the kept records, nothing is run

For every seed demonstrations are collected, a policy is fine-tuned on them (recipes of `hyperparams/agents.yml`, or of
`recipes.yml` here) and trained on by PPO, by GRPO for as many simulator steps, and by QC, whose replay has the
demonstrations, too. Controls stand beside them, each from fresh weights:

* `longer`: fine-tuning on the same demonstrations, for as much processor time as fine-tuning and the longer of PPO and
  GRPO took together; the best of three learning rates on validation;
* `more`: fine-tuning for as many updates on more demonstrations, as many as the simulator steps of reinforcement
  learning would have bought, each of up to three horizons, so that the expert finishes. The expert is a scripted one: a
  user with a real task has none;
* `dagger`: DAgger (Ross et al. 2011), three rounds: the newest policy begins as many episodes in all, the expert takes
  over until the task is solved, and the next policy learns from all episodes so far.

Three splits: demonstrations and training see `train`. Everything is chosen on `validation`: the best of eight policies
on the way of each training, the policy that all begin from among them, and how each policy's actions are decoded.
`test` is played once, from start states that recipes were not chosen on either. What a trial came to is a small file in
the folder of records (`--records`), with the hash of the frozen recipe.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.agents import read_recipes
from benchmarks.evidence.curves import write_curves
from benchmarks.evidence.frozen import freeze, frozen_hash
from benchmarks.evidence.outcomes import Outcomes
from benchmarks.evidence.table import differences, steps_needed, table
from benchmarks.evidence.trial import CONTROLS, Trial
from zoo.files import packaged_folder
from zoo.runs.folder import folder_name

RECORDS = Path(__file__).with_name("records")
RECIPES = Path(__file__).with_name("recipes.yml")
"""In place of the agents' recipes: fewer demonstrations, or fewer steps."""


def main() -> None:
    """Entry point."""
    agents = read_recipes(packaged_folder("hyperparams") / "agents.yml")
    read = {one.env: one for one in (*agents, *read_recipes(RECIPES)) if one.algorithms}
    recipes = {env: replace(one, algorithms=(*one.algorithms, "qc")) for env, one in read.items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV", help="environments (default: all that have a recipe)")
    parser.add_argument("-o", "--output", type=Path, default=Path("evidence-work"), help="where everything goes")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR", help="where outcomes are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7, 8, 9], metavar="S")
    parser.add_argument("--algos", nargs="+", choices=("ppo", "grpo", "qc"), default=["ppo", "grpo", "qc"])
    parser.add_argument("--controls", nargs="*", choices=CONTROLS, default=list(CONTROLS))
    parser.add_argument("--test-starts", type=int, default=300, metavar="N", help="start states of a test")
    parser.add_argument("--freeze", action="store_true", help="write the recipes down, run nothing")
    parser.add_argument("--table", action="store_true", help="print the table of the kept records, run nothing")
    parser.add_argument("--curves", type=Path, metavar="PNG", help="draw success on the validation split, too")
    args = parser.parse_args()
    if unknown := set(args.envs) - recipes.keys():
        raise SystemExit(f"no recipe for {sorted(unknown)}, known: {sorted(recipes)}")
    if args.freeze:
        for env in args.envs or recipes:
            print(f"{env}: {freeze(recipes[env])}")
        return
    if not args.table:
        args.records.mkdir(parents=True, exist_ok=True)
        for env in args.envs or recipes:
            recipe = frozen_hash(recipes[env])
            algorithms = [algo for algo in args.algos if algo in recipes[env].algorithms]
            for seed in args.seeds:
                trial = Trial(
                    replace(recipes[env], seed=seed, algorithms=algorithms),
                    args.output,
                    args.controls,
                    args.test_starts,
                )
                trial.train()
                trial.outcomes(recipe).save(args.records / f"{folder_name(env)}_{seed}.json")
    kept = [Outcomes.load(path) for path in sorted(args.records.glob("*.json"))]
    chosen = [one for one in kept if one.env in (args.envs or recipes)]
    if not chosen:
        raise SystemExit(f"no outcomes in {args.records} yet; without --table they are made")
    try:
        if args.curves:
            write_curves(chosen, args.curves)
        print(f"{table(chosen)}\n\n{differences(chosen)}\n\n{steps_needed(chosen)}")
    except ValueError as error:
        raise SystemExit(f"{error}; the outcomes in {args.records} are kept, name another folder for these") from error


if __name__ == "__main__":
    main()
