"""`python -m zoo.compare --before sft.json --after ppo.json`: two policies on the same start states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from zoo.cli.arguments import OneLineParser, count
from zoo.cli.main import guarded
from zoo.evaluation.results import comparison_table, task_comparison_table
from zoo.evaluation.statistics import compare, compare_tasks, first_rounds, outcomes_of
from zoo.files import quoted, read_json
from zoo.runs.folder import RESULTS_FILE

_NEEDED = {"env", "episodes", "tasks", "summary", "deterministic"}
_NEEDED_OF_EPISODES = {"task_id", "start_state", "success_once"}


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
    p.add_argument("--rounds", type=count, metavar="N", help="the first N rounds of every start state (default: all)")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    if not args.before or not args.after:
        raise BadValue("give both. Example: zoo.compare --before sft.json --after ppo.json")
    before, after = ([read_record(Path(file)) for file in files] for files in (args.before, args.after))
    if len({record["deterministic"] for record in (*before, *after)}) > 1:
        raise BadValue("some of the files are of deterministic actions and some of sampled ones (--stochastic)")
    outcomes = [first_rounds(outcomes_of(records), args.rounds) for records in (before, after)]
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
    """A file of `zoo.evaluate`, or that of a run folder; raises `BadValue` for anything else."""
    file = path / RESULTS_FILE if path.is_dir() else path
    hint = f"write one with: python -m zoo.evaluate -i RUN -o {quoted(file)}"
    if not file.is_file():
        raise BadValue(f"no results of zoo.evaluate in '{file}'; {hint}")
    record = read_json(file)
    if not record.keys() >= _NEEDED or not _are_episodes(record["episodes"]):
        raise BadValue(f"'{file}' is no result of zoo.evaluate; {hint}")
    return record


def _are_episodes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(episode, dict) and episode.keys() >= _NEEDED_OF_EPISODES for episode in value)
    )


if __name__ == "__main__":
    raise SystemExit(guarded(run))
