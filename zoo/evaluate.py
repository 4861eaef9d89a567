"""`vla-zoo evaluate -i logs/ppo/LIBERO-Spatial_1`: success per task on fixed start states."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.reading import read_json_object
from vla_gym.system.paths import check_destination
from zoo.agents.agent import Agent
from zoo.agents.measuring import keep_former, measure, partial_file, weights_of, write_or_print
from zoo.cli.agent import plan_rollout
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import check_alone, guarded
from zoo.cli.run_choice import chosen_run
from zoo.cli.shared_flags import add_episodes_argument, add_policy_arguments, add_run_arguments
from zoo.config.settings import Settings
from zoo.evaluation.robustness import EPISODES_OF_AXIS, axes_of, robustness_table, shares, write_picture
from zoo.evaluation.statistics import rate_of, rate_values
from zoo.files import write_text
from zoo.published import evaluate_published
from zoo.runs.evaluations import is_of_weights
from zoo.runs.folder import RESULTS_FILE, ROBUSTNESS_FILE

_OWN = "the run's policy and words, the default split, deterministic actions and as many start states as possible"


def parser() -> OneLineParser:
    """The flags of `vla-zoo evaluate`."""
    p = OneLineParser("vla-zoo evaluate", "Success per task of a run or a policy, with Wilson 95 % intervals.")
    add_policy_arguments(p, default_split="with -i test, where that has start states of its own, else as trained")
    add_run_arguments(p)
    add_episodes_argument(p, default=None, words="all start states")
    p.add_argument("--video", action="store_true", help="record nine of the episodes, as an mp4 beside the results")
    protocols = p.add_mutually_exclusive_group()
    protocols.add_argument(
        "--robustness",
        action="store_true",
        help="on LIBERO and on what LIBERO-PRO and LIBERO-Plus change of it, the episodes spread over these axes "
        f"(default: {EPISODES_OF_AXIS} each): one table, robustness.json and an image beside it",
    )
    protocols.add_argument(
        "--published",
        metavar="NAME",
        help="by the whole protocol of a published row (vla-zoo published lists them), its figures beside ours",
    )
    p.add_argument("--dry-run", action="store_true", help="with --published: print the protocol, start nothing")
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="JSON result (default: results.json in the run folder, or here; another name, results_train.json for "
        "--split train, where it is not by the run's own protocol; with --published results_NAME.json here). A file of "
        "that name is kept as FILE-1.json",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`.

    The weights' SHA-256 is taken just before they are loaded, which reads them once more.
    """
    args = parser().parse(argv)
    check_alone("vla-zoo evaluate")
    if args.video and (args.robustness or args.published):
        raise BadValue("--video records one environment, --robustness and --published play several; leave one out")
    if args.published is not None:
        args.run = chosen_run(args) if args.run else None
        return evaluate_published(args)
    if args.dry_run:
        raise BadValue("--dry-run says what --published NAME would evaluate; give a row of vla-zoo published with it")
    args.run = chosen_run(args)
    if args.robustness:
        return evaluate_robustness(args)
    plan = plan_rollout(args, episodes=args.eval_episodes, unplayed=True).fetched()
    if args.output:
        check_destination(Path(args.output))
    print(f"{plan.policy.name} on {plan.env}", flush=True)
    weights = weights_of(plan)
    output = Path(args.output) if args.output else check_destination(results_file(plan, weights))
    video = output.with_suffix(".mp4") if args.video else None

    table, record = measure(plan, weights=weights, partial=partial_file(output), progress=args.progress, video=video)
    print(table)
    write_or_print(output, json.dumps(record, indent=2))
    kept = output.name != RESULTS_FILE and not args.output
    print(f"written to {output}{f' ({RESULTS_FILE} is for {_OWN})' if kept else ''}")
    if video:
        print(f"video       {video}")
    return 0


def evaluate_robustness(args: argparse.Namespace) -> int:
    """Play each axis with a part of the episodes; axes that an ended command has finished are not played again."""
    whole = plan_rollout(args, episodes=None, unplayed=True)
    axes, missing = axes_of(whole.env)
    plans = {
        name: plan_rollout(argparse.Namespace(**{**vars(args), "env": name}), episodes=episodes, unplayed=True)
        for name, episodes in shares(axes, args.eval_episodes).items()
    }
    file = whole.named(Path(ROBUSTNESS_FILE).stem) + ".json"
    output = check_destination(Path(args.output) if args.output else (whole.output_folder or Path()) / file)
    picture, partial, weights = output.with_suffix(".png"), partial_file(output), weights_of(whole)
    print(f"{whole.policy.name} on {len(axes)} axes of {whole.env}", flush=True)
    records = _finished(partial, plans, weights)
    if not records:
        keep_former(partial)
    for name, plan in plans.items():
        if name in records:
            print(f"{name}: played before")
            continue
        print(f"{name}: playing {len(plan.episodes)}", flush=True)
        of_axis = partial_file(output.with_name(f"{output.stem}_{name}.json"))
        _, records[name] = measure(plan, weights=weights, partial=of_axis, progress=args.progress)
        write_text(partial, json.dumps({"results": records}))
    rates = [rate_of({**records[name]["success"], "name": name}) for name in plans]
    print("\n".join([robustness_table(rates), *(f"not played: {reason}" for reason in missing)]))
    facts = {"env": whole.env, "policy": whole.policy.name, "weights_sha256": weights}
    record = {**facts, "axes": [rate_values(rate) for rate in rates], "results": records}
    write_or_print(output, json.dumps(record, indent=2))
    keep_former(picture)
    write_picture(rates, picture)
    partial.unlink()
    print(f"written to {output} and {picture.name}")
    return 0


def _finished(partial: Path, plans: Mapping[str, Agent], weights: str | None) -> dict[str, Settings]:
    """Axes in the file of an ended command that these plans would play alike."""
    try:
        records = read_json_object(partial)["results"]
        return {
            name: records[name]
            for name, plan in plans.items()
            if name in records
            and is_of_weights(records[name], weights)
            and len(records[name]["episodes"]) == len(plan.episodes)
            and {**plan.protocol.to_json(), "seed": plan.seed}.items()
            <= records[name]["protocol"]["evaluation"].items()
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def results_file(plan: Agent, weights: str | None) -> Path:
    """Return the file of the results: `results.json` for those by the run's own protocol, else named by the departures.

    An evaluation of the same weights, of this SHA-256, on more start states is not replaced by one on fewer.
    """
    folder, stem = plan.output_folder or Path(), plan.named("results")
    file = folder / f"{stem}.json"
    if plan.output_folder is not None and _episodes_in(file, weights) > len(plan.episodes):
        return folder / f"{stem}_{len(plan.episodes)}-episodes.json"
    return file


def _episodes_in(file: Path, weights: str | None) -> int:
    """Episodes of an evaluation of these very weights; 0 where the file has none."""
    try:
        record = read_json_object(file)
        return len(record["episodes"]) if is_of_weights(record, weights) else 0
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
