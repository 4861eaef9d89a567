"""Flags that say how a run is followed: trackers, and films of its episodes. Imports nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.system.writable_paths import check_folder
from zoo.cli.arguments import count_or_zero
from zoo.config.tracking import SERVICES, Tracking


def add_tracking_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--track` and the names of a run at its trackers; rl_zoo3's flags where it has them."""
    parser.add_argument(
        "--track",
        nargs="+",
        default=[],
        metavar="TRACKER",
        help=f"send the run's numbers to these, too: {', '.join(SERVICES)}",
    )
    parser.add_argument(
        "--project-name",
        "--wandb-project-name",
        metavar="NAME",
        help="project at the trackers (default: their environment variables', else vla-zoo)",
    )
    parser.add_argument("--run-name", metavar="NAME", help="the run's name there (default: <algo>/<run folder>)")
    parser.add_argument("--wandb-entity", metavar="TEAM", help="team of wandb's project, workspace of swanlab's")
    parser.add_argument("--wandb-group", metavar="GROUP", help="group of runs, of wandb and trackio")
    parser.add_argument(
        "-tags", "--wandb-tags", nargs="+", default=[], metavar="TAG", help="tags, of wandb and swanlab"
    )


def tracking_of(args: argparse.Namespace) -> Tracking:
    """Return the trackers that the flags ask for, unchecked."""
    return Tracking(
        trackers=tuple(dict.fromkeys(args.track)),
        project=args.project_name,
        run_name=args.run_name,
        entity=args.wandb_entity,
        group=args.wandb_group,
        tags=tuple(args.wandb_tags),
    )


def add_film_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of films."""
    parser.add_argument(
        "--video-freq",
        type=count_or_zero,
        default=0,
        metavar="STEPS",
        help="film the first nine training episodes that begin after every so many steps; 0: none (default)",
    )
    parser.add_argument(
        "--video-folder", metavar="DIR", help="films in DIR/<algo>/<run>, not in videos/ of the run folder"
    )
    parser.add_argument("--no-eval-video", action="store_true", help="do not film the last evaluation")


def check_films(args: argparse.Namespace, *, collects_elsewhere: bool) -> None:
    """Raise `BadValue` for films of episodes that other processes play, and for a folder that cannot be written."""
    if args.video_freq and collects_elsewhere:
        raise BadValue("--video-freq films episodes of the process that learns; with --placement others play them")
    if args.video_folder:
        check_folder(Path(args.video_folder), what="films", flag="--video-folder DIR")
