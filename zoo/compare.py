"""`python -m zoo.compare --before sft.json --after ppo.json`: two policies on the same start states."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from zoo.evaluation.statistics import compare, compare_tasks, first_rounds, outcomes_of
from zoo.files import quoted, read_json
from zoo.runs.folder import RESULTS_FILE

_NEEDED = {"env": str, "episodes": list, "tasks": list, "summary": str, "deterministic": bool}
_NEEDED_OF_EPISODES = {"task_id": int, "start_state": str, "success_once": bool}
_OF_PLAYING = ("output", "num_envs", "device", "token_file", "server_conf")


def parser() -> OneLineParser:
    """The flags of `zoo.compare`."""
    p = OneLineParser("zoo.compare", "Paired comparison of zoo.evaluate's results: intervals and an exact p.")
    for name, whose in (("before", "the first"), ("after", "the second")):
        p.add_argument(
            f"--{name}",
            nargs="+",
            metavar="FILE",
            help=f"results of {whose} policy: JSON of zoo.evaluate, or its run folder; several splits count together",
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
    if not args.before or (args.after is None) == (args.policy is None):
        raise BadValue(
            "give both: --before, and --after or --policy. Example: zoo.compare --before sft.json --after ppo.json"
        )
    for name in _OF_PLAYING:
        if args.policy is None and getattr(args, name) is not None:
            raise BadValue(f"{flag_of(name)} goes with --policy, which plays one; leave it out")
    before = [read_record(path) for path in args.before]
    after = [read_record(path) for path in args.after] if args.after else [play(args, before)]
    if len({record["deterministic"] for record in (*before, *after)}) > 1:
        raise BadValue(
            "some of the files are of deterministic actions and some of sampled ones (zoo.evaluate --stochastic)"
        )
    outcomes = [first_rounds(outcomes_of(records), args.rounds) for records in (before, after)]
    print(comparison_table(compare(*outcomes)))
    tasks, names = compare_tasks(*outcomes), task_names(before)
    if len(tasks) > 1:
        print(task_comparison_table({names[task]: one for task, one in tasks.items()}))
    for sentence in differences(before, after):
        print(f"warning: {sentence}")
    for line in dict.fromkeys(record["summary"] for record in (*before, *after)):
        print(f"protocol: {line}")
    return 0


def play(args: argparse.Namespace, before: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Evaluate `--policy` from the start states of a record and by its protocol; write and return the results."""
    if len(before) > 1:
        raise BadValue(f"--policy plays the start states of one --before file, got {len(before)}")
    (record,) = before
    if not all(_has(one, {"trial_id": int}) for one in record["episodes"]) or not _has(record, {"protocol": dict}):
        raise BadValue("--before does not say which start states were played, and by which protocol; evaluate it anew")
    parser = OneLineParser("zoo.compare --policy", "")
    add_policy_arguments(parser)
    flags = parser.parse(_flags_of(record, args))
    plan = plan_rollout(flags, episodes=None)
    states = dict.fromkeys((episode["task_id"], episode["trial_id"]) for episode in record["episodes"])
    starts = tuple(StartState(task_id=task, trial_id=trial) for task, trial in states)
    plan = replace(plan, start_states=starts, num_envs=min(plan.num_envs, len(starts) * plan.protocol.rounds))
    output = check_destination(Path(args.output or "compared.json"))
    if output.exists() and output.samefile(results_file(args.before[0])):
        raise BadValue(f"-o {output} holds the results of --before; give another -o")
    table, played = measure(plan, weights=weights_of(plan), partial=partial_file(output), progress=False)
    print(table)
    write_or_print(output, json.dumps(played, indent=2))
    print(f"written to {output}\n")
    return played


def _flags_of(record: Mapping[str, Any], args: argparse.Namespace) -> list[str]:
    """The flags of an evaluation by the protocol of `record`."""
    protocol = record["protocol"]
    if protocol.get("own_instructions"):
        raise BadValue(
            "--policy plays the tasks' own words, and --before was played with others: zoo.evaluate --instructions FILE"
        )
    evaluation = protocol["evaluation"] if _has(protocol, {"evaluation": dict}) else {}
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


def differences(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each condition, beside the policy, that one side was measured under and the other not."""
    ours, theirs = _conditions(before), _conditions(after)
    pairs = {kind: (sorted(ours[kind] - theirs[kind]), sorted(theirs[kind] - ours[kind])) for kind in ours}
    return [
        f"the two sides had other {kind}, which may explain the difference: {shown(one[0])} before, "
        f"{shown(other[0])} after"
        for kind, (one, other) in pairs.items()
        if one and other
    ]


def _conditions(records: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Condition -> what it was in these records, as text; records that do not say add nothing."""
    found: dict[str, set[str]] = {"words": set(), "horizons": set(), "options": set()}
    for protocol in [record["protocol"] for record in records if _has(record, {"protocol": dict})]:
        if _has(protocol, {"options": dict}):
            found["options"].add(json.dumps(protocol["options"], sort_keys=True))
        tasks = protocol["tasks"] if _has(protocol, {"tasks": list}) else []
        for task in tasks:
            if _has(task, {"name": str, "instruction": str, "horizon": int}):
                found["words"].add(f"{task['name']}: {task['instruction']}")
                found["horizons"].add(f"{task['name']}: {task['horizon']} steps")
    return found


def task_names(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """<environment>/<task id> -> the task's name, with the environment where there are several."""
    several = len({record["env"] for record in records}) > 1
    found = {}
    for record in records:
        played = sorted({episode["task_id"] for episode in record["episodes"]})
        for task_id, task in zip(played, record["tasks"], strict=True):
            name = f"{record['env']} {task['name']}" if several else task["name"]
            found[f"{record['env']}/{task_id}"] = name
    return found


def results_file(path: str) -> Path:
    """The file that `--before` or `--after` names: itself, or that of a run folder."""
    return Path(path) / RESULTS_FILE if Path(path).is_dir() else Path(path)


def read_record(path: str) -> Mapping[str, Any]:
    """A file of `zoo.evaluate`, or that of a run folder; raises `BadValue` for anything else."""
    file = results_file(path)
    if not file.is_file():
        hint = f"python -m zoo.evaluate -i RUN -o {quoted(file)}"
        if Path(path).is_dir():
            hint = f"python -m zoo.evaluate -i {quoted(path)}"
        raise BadValue(f"no results of zoo.evaluate in '{file}'; write one with: {hint}")
    record = read_json(file)
    if not _is_record(record):
        kept = any(_has(part, {"summary": str, "success": dict}) for part in record.values())
        rates = "has rates alone, as trained agents come, and pairs need episodes"
        what = rates if kept else "is no result of zoo.evaluate"
        raise BadValue(f"'{file}' {what}; write one with: python -m zoo.evaluate -i RUN -o NEW.json")
    return record


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether it has what is read here: episodes, and the tasks that they are of."""
    if not (_has(record, _NEEDED) and all(_has(task, {"name": str}) for task in record["tasks"])):
        return False
    episodes = record["episodes"]
    if not all(_has(one, _NEEDED_OF_EPISODES) and isinstance(one.get("round", 0), int) for one in episodes):
        return False
    return bool(episodes) and len({one["task_id"] for one in episodes}) == len(record["tasks"])


def _has(value: object, needed: Mapping[str, type]) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in needed.items())


if __name__ == "__main__":
    raise SystemExit(guarded(run))
