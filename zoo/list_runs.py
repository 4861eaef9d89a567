"""`vla-zoo runs`: the run folders under logs/, newest last, with their last evaluation and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vla_gym.errors import BadValue, VLAZooError
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.runs.folder import CONFIG_FILE, RunFolder
from zoo.runs.monitor import read_evaluations


def parser() -> OneLineParser:
    """The flags of `vla-zoo runs`."""
    p = OneLineParser("vla-zoo runs", "Run folders, newest last: environment, policy, last evaluation, checkpoints.")
    p.add_argument("-f", "--log-folder", default="logs", metavar="DIR", help="where runs are (default: logs)")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    folder = Path(parser().parse(argv).log_folder)
    configs = sorted(folder.glob(f"*/*/{CONFIG_FILE}"), key=lambda file: file.stat().st_mtime)
    if not configs:
        raise BadValue(f"no runs under '{folder}'; vla-zoo train begins one, -f says where others are")
    for file in configs:
        print(line_of(RunFolder(file.parent)))
    return 0


def line_of(run: RunFolder) -> str:
    """Return what `-i` takes, and what there is; of a run that cannot be read why not."""
    try:
        config, points = run.config(), read_evaluations(run)
    except VLAZooError as error:
        return f"{run.path}  cannot be read: {' '.join(str(error).split())}"
    rate = f"success {points[-1].rate.mean:.1%} at {points[-1].steps}" if points else "not evaluated"
    saved = ", ".join(map(str, run.saved_steps())) or "none"
    return f"{run.path}  {config.env} with {config.policy}, {rate}, checkpoints: {saved}"


if __name__ == "__main__":
    raise SystemExit(guarded(run))
