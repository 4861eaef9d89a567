"""`python -m zoo.train --algo ppo --env LIBERO-130`: train, evaluate, checkpoint, film, and say what next."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from vla_gym.system.writable_paths import check_folder
from zoo.cli.arguments import (
    OneLineParser,
    add_gym_packages_argument,
    add_worker_error_argument,
    count,
    count_or_zero,
    pipeline_stages,
    seed,
)
from zoo.cli.main import guarded, hush_ranks
from zoo.cli.run_flags import check_services, resolve_new_run, resolve_resumed_run
from zoo.config.gym_packages import import_gym_packages
from zoo.config.run_config import RunConfig
from zoo.hub.download import is_remote, remote_resume_point
from zoo.hub.upload import publish_trained
from zoo.runs.lookup import ResumePoint, find_resume_point
from zoo.training.run_plan import check_startable, dry_run_text, memory_lines, plan_of


def parser(
    prog: str = "zoo.train", what: str = "Train, evaluate, checkpoint, film, and say what next."
) -> OneLineParser:
    """The flags of `zoo.train`: rl_zoo3's grammar."""
    p = OneLineParser(prog, what)
    p.add_argument("--algo", help="ppo or grpo (default: ppo)")
    p.add_argument(
        "--env", metavar="ID", help="environment id, e.g. Toy-Reach, LIBERO-Spatial, LIBERO-Spatial/3"
    )
    p.add_argument(
        "--policy", metavar="NAME", help="family name, checkpoint folder or Hub id (default: nano)"
    )
    p.add_argument(
        "-n", "--n-timesteps", type=count, metavar="STEPS", help="simulator steps, all envs together"
    )
    p.add_argument("--num-envs", type=count, metavar="N", help="simulators side by side")
    p.add_argument("--seed", type=seed, metavar="S", help="seed of everything (default: drawn and stored)")
    p.add_argument("-f", "--log-folder", metavar="DIR", help="where run folders go (default: logs)")
    p.add_argument(
        "-i",
        "--resume",
        metavar="RUN",
        help="a run folder: go on in place from its newest checkpoint; a checkpoints/step_<n> folder, or the Hub id "
        "of a run: go on from there in a new run folder",
    )
    p.add_argument(
        "-params",
        "--params",
        nargs="+",
        default=[],
        metavar="KEY:VALUE",
        help="settings over the hyperparameter file, values in YAML: learning_rate:3e-4 chunk:8",
    )
    p.add_argument("-conf", "--conf-file", metavar="FILE", help="YAML file instead of the packaged one")
    p.add_argument(
        "--eval-freq", type=count_or_zero, metavar="STEPS", help="steps between evaluations; 0: at the end"
    )
    p.add_argument(
        "--eval-episodes", type=count_or_zero, metavar="N", help="episodes of an evaluation; 0: none"
    )
    p.add_argument(
        "--save-freq",
        type=count_or_zero,
        metavar="STEPS",
        help="steps between checkpoints; 0: at the end (default: the recipe's, else a quarter of -n)",
    )
    p.add_argument(
        "-tb", "--tensorboard-log", metavar="DIR", help="TensorBoard events there, not in the run folder"
    )
    p.add_argument("--track", metavar="TRACKER", help="wandb or swanlab: send the run's numbers there, too")
    add_gym_packages_argument(p)
    add_worker_error_argument(p, default=None, what="start it anew, its episodes are lost and not counted")
    p.add_argument("-P", "--progress", action="store_true", help="progress bar with time left")
    p.add_argument("--device", metavar="D", help="torch device: auto, cpu, cuda, cuda:1 (default: auto)")
    p.add_argument(
        "--num-threads", type=count, metavar="N", help="torch CPU threads (default: torch's choice)"
    )
    p.add_argument(
        "--placement",
        metavar="env=0-1,rollout=2,actor=3",
        help="which processes simulate, which decide, which learn (default: all)",
    )
    p.add_argument(
        "--offload-idle",
        action="store_true",
        default=None,
        help="keep the optimiser's state in main memory while the policy decides",
    )
    p.add_argument(
        "--max-staleness",
        type=count_or_zero,
        metavar="K",
        help="PPO, with rollout ranks that do not learn: collect with weights up to K updates old (default: 0)",
    )
    p.add_argument(
        "--pipeline-stages",
        type=pipeline_stages,
        metavar="K",
        help="simulate one part of the environments while deciding for another: off (default), on (2 parts), auto, or "
        "their number",
    )
    p.add_argument(
        "--dry-run", action="store_true", help="print the resolved run and its arithmetic, start nothing"
    )
    p.add_argument("--push-to-hub", metavar="REPO", help="publish the result, privately")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_gym_packages(args.gym_packages)
    check_services(args)
    config, point = resolve_run(args)
    if args.tensorboard_log:
        check_folder(Path(args.tensorboard_log) / config.algo, what="TensorBoard's files", flag="-tb DIR")
    plan = plan_of(config)
    if os.environ.get("RANK", "0") == "0" and not (point and point.in_place):
        check_folder(_log_folder(args, point), what="run folders", flag="-f DIR")
    # Only now: torch takes seconds to import, a typo should not.
    hush_ranks()
    check_startable(config)
    if args.dry_run:
        print("\n".join([dry_run_text(config, point), *memory_lines(config, plan)]))
        return 0
    return _train(args, config, point, argv)


def resolve_run(args: argparse.Namespace) -> tuple[RunConfig, ResumePoint | None]:
    """The run that the flags ask for: its configuration and, with -i, where it goes on from."""
    if not args.resume:
        return resolve_new_run(args), None
    point = remote_resume_point(args.resume) if is_remote(args.resume) else find_resume_point(args.resume)
    return resolve_resumed_run(args, point), point


def _log_folder(args: argparse.Namespace, point: ResumePoint | None) -> Path:
    """Where a new run folder goes."""
    if args.log_folder is not None:
        return Path(args.log_folder)
    return point.run.path.parent.parent if point and not is_remote(args.resume) else Path("logs")


def _train(
    args: argparse.Namespace, config: RunConfig, point: ResumePoint | None, argv: Sequence[str]
) -> int:
    from zoo.training.setup import train
    from zoo.training.trainer import TrainingRequest

    request = TrainingRequest(
        config=config,
        resume=point,
        log_folder=_log_folder(args, point),
        tensorboard_log=Path(args.tensorboard_log) if args.tensorboard_log else None,
        progress=args.progress,
        track=args.track,
        command=("python", "-m", "zoo.train", *argv),
        args=vars(args),
    )
    run = train(request)
    if args.push_to_hub and run is not None:
        print(publish_trained(run, args.push_to_hub), flush=True)
    return 0


def main() -> int:
    """Entry point of `python -m zoo.train`."""
    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
