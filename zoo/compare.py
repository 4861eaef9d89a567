"""`vla-zoo compare logs/sft/RUN logs/ppo/RUN`: two policies on the same start states."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, shown
from vla_gym.specs import StartState
from vla_gym.system.paths import check_destination
from zoo.agents.measuring import measure, partial_file, weights_of, write_or_print
from zoo.cli.agent import plan_rollout
from zoo.cli.arguments import DEFAULT_NUM_ENVS, OneLineParser, count, flag_of
from zoo.cli.main import guarded
from zoo.cli.shared_flags import add_policy_arguments
from zoo.evaluation.results import comparison_table, task_comparison_table
from zoo.evaluation.statistics import Outcomes, compare, compare_tasks, first_rounds, outcomes_of
from zoo.files import content_of, quoted, read_json
from zoo.runs.evaluations import OF_WEIGHTS
from zoo.runs.folder import EVALUATION_FILE, RESULTS_FILE

_OF_PLAYING = ("output", "num_envs", "device", "token_file", "server_conf")


def parser() -> OneLineParser:
    """The flags of `vla-zoo compare`."""
    p = OneLineParser("vla-zoo compare", "Paired comparison of two policies: intervals and an exact p.")
    p.add_argument("runs", nargs="*", metavar="RUN", help="before and after: run folders or results of evaluate")
    for name, whose in (("before", "the first"), ("after", "the second")):
        p.add_argument(
            f"--{name}",
            nargs="+",
            default=[],
            metavar="FILE",
            help=f"results of {whose} policy: JSON of evaluate, or its run folder; several splits count together",
        )
    p.add_argument(
        "--policy",
        metavar="NAME",
        help="instead of --after: play this policy (ws://HOST:PORT, a family or a folder) from the start states of "
        "--before",
    )
    p.add_argument("-o", "--output", metavar="FILE", help="with --policy: its results (default: compared.json)")
    p.add_argument(
        "--num-envs",
        type=count,
        metavar="N",
        help=f"with --policy: simulators side by side (default: {DEFAULT_NUM_ENVS})",
    )
    p.add_argument("--device", metavar="D", help="with --policy: torch device (default: auto)")
    p.add_argument("--token-file", metavar="FILE", help="with --policy: what its server asks its clients for")
    p.add_argument("--server-conf", metavar="FILE", help="with --policy: YAML about its server")
    p.add_argument("--rounds", type=count, metavar="N", help="the first N rounds of every start state (default: all)")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    before_files, after_files = args.before or args.runs[:1], args.after or args.runs[1:]
    given = bool(args.before) + bool(args.after) if args.runs else 0
    several = args.policy and len(before_files) > 1
    if not before_files or bool(after_files) == bool(args.policy) or given or several or len(args.runs) > 2:
        raise BadValue(
            "give both, before and after: vla-zoo compare logs/sft/RUN logs/ppo/RUN, or --before FILE ... --after FILE "
            "..., or one --before FILE with --policy NAME"
        )
    for name in _OF_PLAYING:
        if args.policy is None and getattr(args, name) is not None:
            raise BadValue(f"{flag_of(name)} goes with --policy, which plays one; leave it out")
    name = file_of_runs([*before_files, *after_files])
    before = [read_results(path, name) for path in before_files]
    after = [read_results(path, name) for path in after_files] if after_files else [play(args, before)]
    if len({bool(side.record["deterministic"]) for side in (*before, *after)}) > 1:
        raise BadValue(
            "some of the files are of deterministic actions and some of sampled ones (vla-zoo evaluate --stochastic)"
        )
    outcomes = [first_rounds(outcomes_of([side.record for side in sides]), args.rounds) for sides in (before, after)]
    print(comparison_table(compare(*outcomes)))
    tasks = compare_tasks(*outcomes)
    if len(tasks) > 1:
        several = len({side.record["env"] for side in before}) > 1
        names = {
            task: f"{side.record['env']} {name}" if several else name
            for side in before
            for task, name in side.names.items()
        }
        print(task_comparison_table({names[task]: one for task, one in tasks.items()}))
    for sentence in differences(before, after):
        print(f"warning: {sentence}")
    for line in dict.fromkeys(side.record["summary"] for side in (*before, *after)):
        print(f"protocol: {line}")
    return 0


@dataclass(frozen=True, kw_only=True)
class Results:
    """A result of `vla-zoo evaluate`, its content checked."""

    file: Path
    record: Mapping[str, Any]
    outcomes: Outcomes
    names: Mapping[str, str]
    """<environment>/<task id> -> the task's name."""
    conditions: Mapping[str, frozenset[str]]
    """Kind -> what the episodes were played under; none where the file does not say."""


def file_of_runs(paths: Sequence[str]) -> str:
    """Return the file that run folders are compared by: the results of `vla-zoo evaluate` where each of them has some,
    else the last evaluations of their training."""
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    names = (RESULTS_FILE, EVALUATION_FILE)
    return next((name for name in names if all((folder / name).is_file() for folder in folders)), RESULTS_FILE)


def read_results(path: str, name: str = RESULTS_FILE) -> Results:
    """Return a file of `vla-zoo evaluate`, or the file `name` of a run folder; raises `BadValue` for anything else."""
    folder = Path(path).is_dir()
    file = Path(path) / name if folder else Path(path)
    if not file.is_file():
        hint = f"vla-zoo evaluate -i {quoted(path) if folder else f'RUN -o {quoted(file)}'}"
        raise BadValue(f"no results of vla-zoo evaluate in '{file}'; write one with: {hint}")
    return _results(file, read_json(file))


def _results(file: Path, record: Mapping[str, Any]) -> Results:
    if not record.get("episodes"):
        raise BadValue(
            f"'{file}' holds no episodes, which pairs need; write them with: vla-zoo evaluate -i RUN -o NEW.json"
        )
    with content_of(file):
        played = sorted({int(episode["task_id"]) for episode in record["episodes"]})
        names = [str(task["name"]) for task in record["tasks"]]
        protocol = record.get("protocol") or {}
        tasks = protocol.get("tasks", ())
        return Results(
            file=file,
            record={**record, "env": str(record["env"]), "summary": str(record["summary"])},
            outcomes=outcomes_of([record]),
            names={f"{record['env']}/{task}": name for task, name in zip(played, names, strict=True)},
            conditions={
                "words": frozenset(f"{task['name']}: {task['instruction']}" for task in tasks),
                "horizons": frozenset(f"{task['name']}: {task['horizon']} steps" for task in tasks),
                "readings of the policy": frozenset(
                    f"{name} {value}" for name, value in record.get("read_as", {}).items() if name not in OF_WEIGHTS
                ),
                "options": frozenset(
                    [json.dumps(protocol["options"], sort_keys=True)] if "options" in protocol else []
                ),
            },
        )


def play(args: argparse.Namespace, before: Sequence[Results]) -> Results:
    """Evaluate `--policy` from the start states of a result and by its protocol; write and return the results."""
    (side,) = before
    if "protocol" not in side.record or not all("trial_id" in episode for episode in side.record["episodes"]):
        raise BadValue("--before does not say which start states were played, and by which protocol; evaluate it anew")
    parser = OneLineParser("vla-zoo compare --policy", "")
    add_policy_arguments(parser)
    with content_of(side.file):
        flags = parser.parse(_flags_of(side.record, args))
        states = dict.fromkeys((int(one["task_id"]), int(one["trial_id"])) for one in side.record["episodes"])
    starts = tuple(StartState(task_id=task, trial_id=trial) for task, trial in states)
    agent = plan_rollout(flags, episodes=None)
    agent = replace(agent, start_states=starts, num_envs=min(agent.num_envs, len(starts) * agent.protocol.rounds))
    output = check_destination(Path(args.output or "compared.json"))
    if output.exists() and output.samefile(side.file):
        raise BadValue(f"-o {output} holds the results of --before; give another -o")
    table, played = measure(agent, weights=weights_of(agent), partial=partial_file(output), progress=False)
    print(table)
    write_or_print(output, json.dumps(played, indent=2))
    print(f"written to {output}\n")
    return _results(output, played)


def _flags_of(record: Mapping[str, Any], args: argparse.Namespace) -> list[str]:
    """The flags of an evaluation by the protocol of `record`."""
    protocol = record["protocol"]
    if protocol.get("own_instructions"):
        raise BadValue("--policy plays the tasks' own words, and --before was played with others (--instructions FILE)")
    evaluation = protocol.get("evaluation") or {}
    given = {
        "env": record["env"],
        "policy": args.policy,
        "seed": record.get("seed", 0),
        "rounds": record.get("rounds", 1),
        "split": protocol.get("split"),
        "temperature": evaluation.get("temperature"),
        "top_k": evaluation.get("top_k"),
        **{name: getattr(args, name) for name in _OF_PLAYING if name != "output"},
    }
    flags = [word for name, value in given.items() if value is not None for word in (flag_of(name), str(value))]
    flags += [] if record["deterministic"] else ["--stochastic"]
    options = protocol.get("options")
    return [*flags, "--params", f"env_kwargs:{json.dumps(options)}"] if options else flags


def differences(before: Sequence[Results], after: Sequence[Results]) -> list[str]:
    """Return a sentence for each condition, beside the policy, that one side was measured under and the other not."""
    sentences = [
        f"'{side.file}' is the last evaluation of training, mostly of start states that were trained on; others: "
        f"vla-zoo evaluate -i {quoted(side.file.parent)}"
        for side in (*before, *after)
        if side.file.name == EVALUATION_FILE
    ]
    for kind in before[0].conditions:
        ours, theirs = (frozenset().union(*(side.conditions[kind] for side in sides)) for sides in (before, after))
        if ours - theirs and theirs - ours:
            sentences.append(
                f"the two sides had other {kind}, which may explain the difference: {shown(min(ours - theirs))} "
                f"before, {shown(min(theirs - ours))} after"
            )
    return sentences


if __name__ == "__main__":
    raise SystemExit(guarded(run))
