"""`python -m zoo.compare --before sft.json --after ppo.json`: two policies on the same start states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from zoo.arguments import OneLineParser
from zoo.cli import guarded
from zoo.paired import compare, compare_tasks, outcomes_of
from zoo.results import comparison_table, task_comparison_table

_NEEDED = {"env", "episodes", "tasks", "summary", "deterministic"}


def parser() -> OneLineParser:
    """The flags of `zoo.compare`."""
    p = OneLineParser("zoo.compare", "Paired comparison of zoo.evaluate's results: intervals and an exact p.")
    for name, whose in (("before", "the first"), ("after", "the second")):
        p.add_argument(
            f"--{name}",
            nargs="+",
            metavar="FILE",
            help=f"results of {whose} policy, JSON of zoo.evaluate; several splits count together",
        )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.guarded`."""
    args = parser().parse(argv)
    if not args.before or not args.after:
        raise BadValue("give both. Example: zoo.compare --before sft.json --after ppo.json")
    before, after = ([read_record(Path(file)) for file in files] for files in (args.before, args.after))
    if len({record["deterministic"] for record in (*before, *after)}) > 1:
        raise BadValue(
            "some of the files are of deterministic actions and some of sampled ones (--stochastic)"
        )
    outcomes = outcomes_of(before), outcomes_of(after)
    print(comparison_table(compare(*outcomes)))
    tasks, names = compare_tasks(*outcomes), task_names(before)
    if len(tasks) > 1:
        print(task_comparison_table({names[task]: one for task, one in tasks.items()}))
    for line in dict.fromkeys(record["summary"] for record in (*before, *after)):
        print(f"protocol: {line}")
    return 0


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


def read_record(path: Path) -> Mapping[str, Any]:
    """A file of `zoo.evaluate`; raises `BadValue` for anything else."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadValue(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(record, dict) or not record.keys() >= _NEEDED:
        raise BadValue(f"'{path}' is no result of zoo.evaluate; write one with zoo.evaluate -o {path}")
    return record


def main() -> int:
    """Entry point of `python -m zoo.compare`."""
    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
