"""`vla-zoo load_from_hub me/my-policy`: a published run as a run folder under logs/."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vla_gym.errors import BadValue
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.files import quoted
from zoo.hub.download import install_run, is_remote
from zoo.runs.folder import longer


def parser() -> OneLineParser:
    """The flags of `vla-zoo load_from_hub`."""
    p = OneLineParser("vla-zoo load_from_hub", "Fetch a run that vla-zoo push_to_hub published, as a run folder.")
    p.add_argument("repo", metavar="REPO", help="org/name, or org/name@revision")
    p.add_argument("-f", "--log-folder", default="logs", metavar="DIR", help="where run folders go (default: logs)")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    if not is_remote(args.repo):
        raise BadValue(f"'{args.repo}' is no Hub id; it must look like org/name or org/name@revision")
    found = install_run(args.repo, Path(args.log_folder))
    folder = quoted(found.path)
    print(f"run folder  {found.path}\nnext:\n  vla-zoo evaluate -i {folder} -P")
    steps, config = found.saved_steps(), found.config()
    if steps and config.algo == "sft":
        print(f"  vla-zoo sft -i {folder}   (go on; --dataset FOLDER says where its demonstrations are)")
    elif steps:
        print(f"  vla-zoo train -i {folder} -n {longer(config.n_timesteps, steps[-1])}   (train on)")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
