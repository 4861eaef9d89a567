"""`vla-zoo train --algo ppo --env LIBERO-130`: train, evaluate, checkpoint, record videos, print next steps."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.system.paths import check_folder
from vla_policies.resolver import PolicyRef
from zoo.cli.arguments import OneLineParser, add_fields, count_or_zero
from zoo.cli.main import guarded, quiet_torch_in_ranks
from zoo.cli.run_flags import (
    check_log_folder,
    check_services,
    open_new_run,
    open_published,
    resolve_resumed_run,
    resume_interrupted,
    tracking_of,
)
from zoo.cli.shared_flags import (
    add_new_run_arguments,
    add_progress_argument,
    add_worker_error_argument,
)
from zoo.config.algorithm_configs import ALGORITHMS, OffPolicyConfig
from zoo.config.gym_packages import import_named_packages, import_parts
from zoo.config.run_config import RunConfig
from zoo.config.tracking import Tracking
from zoo.distributed.placement import check_same_kind
from zoo.runs.evaluations import policy_line
from zoo.runs.folder import ARGS_FILE
from zoo.runs.lookup import ResumePoint, find_resume_point
from zoo.training.run_plan import (
    RunPlan,
    TrainJob,
    check_startable,
    checkpoint_policy,
    dry_run_text,
    hopeless_start,
)


def parser(
    prog: str = "vla-zoo train",
    description: str = "Train, evaluate, checkpoint, record videos, and print next steps.",
) -> OneLineParser:
    """The flags of `vla-zoo train`: rl_zoo3's grammar."""
    p = OneLineParser(prog, description)
    p.add_argument("--algo", type=str.lower, help=f"{', '.join(ALGORITHMS)} (default: ppo)")
    steps = {"flags": ("-n", "--n-timesteps"), "metavar": "STEPS", "default": "the recipe's"}
    add_fields(p, RunConfig, "env", "n_timesteps", env={"metavar": "ID"}, n_timesteps=steps)
    add_new_run_arguments(
        p,
        recipes="one",
        resume="a run folder: go on in place from its newest checkpoint; a checkpoints/step_<n> folder, or the Hub id "
        "of a run: go on from there in a new run folder; auto: in the newest run of this --algo, --env and -f, or "
        "begin one",
        params="settings over the hyperparameter file, values in YAML: learning_rate:3e-4 chunk:8",
        policy={"default": "the trained agent that comes with vla-zoo for this environment, else nano"},
        num_envs={"default": "the recipe's"},
        eval_freq={"metavar": "STEPS"},
        save_freq={"metavar": "STEPS", "default": "the recipe's, else a quarter of -n"},
    )
    p.add_argument("-tb", "--tensorboard-log", metavar="DIR", help="TensorBoard events there, not in the run folder")
    add_fields(
        p,
        Tracking,
        trackers={"flags": ("--track",), "metavar": "TRACKER"},
        project={"flags": ("--project-name", "--wandb-project-name")},
        run_name={"flags": ("--run-name",)},
        entity={"flags": ("--wandb-entity",), "metavar": "TEAM"},
        group={"flags": ("--wandb-group",), "metavar": "GROUP"},
        tags={"flags": ("-tags", "--wandb-tags"), "metavar": "TAG"},
    )
    p.add_argument(
        "--video-freq",
        type=count_or_zero,
        default=0,
        metavar="STEPS",
        help="record the first nine training episodes that begin after every so many steps; 0: none (default)",
    )
    p.add_argument("--video-folder", metavar="DIR", help="videos in DIR/<algo>/<run>, not in videos/ of the run folder")
    p.add_argument("--no-eval-video", action="store_true", help="do not record the last evaluation")
    add_worker_error_argument(p, default=None, restart="start it anew, its episodes are lost and not counted")
    add_progress_argument(p)
    spread = ("placement", "offload_idle", "max_staleness", "pipeline_stages", "rank_timeout")
    add_fields(p, RunConfig, *spread, placement={"metavar": "ROLES"}, rank_timeout={"metavar": "MINUTES"})
    p.add_argument("--published", metavar="NAME", help="the recipe of a published row (vla-zoo published lists them)")
    p.add_argument("--dry-run", action="store_true", help="print the resolved run and its arithmetic, start nothing")
    p.add_argument("--push-to-hub", metavar="REPO", help="publish the result, privately")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_named_packages(args)
    check_services(args)
    if args.resume == "auto" and (complete := resume_interrupted(args)):
        print(complete)
        return 0
    config, policy, point = resolve_run(args)
    _check_parts(config, point)
    plan = RunPlan.resolve(config, policy=policy)
    if point is not None:
        check_same_kind(plan.placement, config.placement, point.run.config().placement)
    if args.video_freq and not plan.placement.everywhere:
        raise BadValue("--video-freq records episodes of the process that learns; with --placement others play them")
    _check_folders(args, config, point)
    # Only now: torch takes seconds to import, a typo should not.
    quiet_torch_in_ranks()
    check_startable(plan)
    if point is not None:
        from zoo.distributed.process_group import launched_processes
        from zoo.training.checkpoint import read_state

        # Several ranks compare hashes when they have met, each its share.
        read_state(point.checkpoint, config.algo.upper(), hashed=slice(None if launched_processes() == 1 else 0))
    if args.dry_run:
        print(dry_run_text(plan, point, [*_published_lines(args), *_start_lines(config, policy)]))
        if point is None and (sentence := hopeless_start(config)) is not None:
            print(f"warning: {sentence}")
        return 0
    if point is not None:
        policy = checkpoint_policy(config, point.checkpoint)
    elif policy is not None and not policy.fresh:
        from zoo.training.start_weights import check_fit

        policy = policy.fetched()
        check_fit(config, policy)
    assert policy is not None
    from zoo.training.rl_trainer import set_up

    with ExitStack() as cleanup:
        job = _job_of(args, config, policy, point, argv)
        run = set_up(job, plan, cleanup).train()
    if args.push_to_hub and run is not None:
        from zoo.hub.upload import publish_trained

        print(publish_trained(run, args.push_to_hub), flush=True)
    return 0


def _check_folders(args: argparse.Namespace, config: RunConfig, point: ResumePoint | None) -> None:
    if args.tensorboard_log:
        check_folder(Path(args.tensorboard_log) / config.algo, what="TensorBoard's files", flag="-tb DIR")
    if args.video_folder:
        check_folder(Path(args.video_folder), what="videos", flag="--video-folder DIR")
    if os.environ.get("RANK", "0") == "0" and not (point and point.in_place):
        check_folder(_log_folder(args, point), what="run folders", flag="-f DIR")


def _check_parts(config: RunConfig, point: ResumePoint | None) -> None:
    args_file = None if point is None else point.run.path / ARGS_FILE
    for name in ("env_wrapper", "callback"):
        import_parts(getattr(config, name), name, args_file)


def _start_lines(config: RunConfig, policy: PolicyRef | None) -> list[str]:
    if policy is None:
        return []
    from zoo.training.start_weights import start_lines, start_record

    return [*start_lines(config, policy), policy_line(start_record(config, policy))]


def _published_lines(args: argparse.Namespace) -> list[str]:
    if args.published is None:
        return []
    from zoo.evaluation.published import find_published

    row = find_published(args.published)
    figures = ", ".join(f"{figure.label} {figure.percent:g} %" for figure in row.figures)
    return [f"published    {row.name}: {figures}", f"hardware     the source's: {row.hardware}"]


def resolve_run(args: argparse.Namespace) -> tuple[RunConfig, PolicyRef | None, ResumePoint | None]:
    """Return the configuration of the run that the flags ask for, and the policy that it starts from; with -i the
    checkpoint that it goes on from instead."""
    if args.published is not None:
        return *open_published(args), None
    if not args.resume:
        return *open_new_run(args), None
    from zoo.hub.download import is_remote, remote_resume_point

    point = remote_resume_point(args.resume) if is_remote(args.resume) else find_resume_point(args.resume)
    check_log_folder(args, point)
    config = resolve_resumed_run(args, point)
    if isinstance(config.algorithm, OffPolicyConfig) and not point.in_place:
        raise BadValue(f"a run of {config.algo} goes on in its own folder, beside its replay: -i {point.run.path}")
    return config, None, point


def _log_folder(args: argparse.Namespace, point: ResumePoint | None) -> Path:
    if args.log_folder is not None:
        return Path(args.log_folder)
    if not point:
        return Path("logs")
    from zoo.hub.download import is_remote

    return Path("logs") if is_remote(args.resume) else point.run.path.parent.parent


def _job_of(
    args: argparse.Namespace, config: RunConfig, policy: PolicyRef, point: ResumePoint | None, argv: Sequence[str]
) -> TrainJob:
    return TrainJob(
        config=config,
        policy=policy,
        resume=point,
        log_folder=_log_folder(args, point),
        tensorboard_log=Path(args.tensorboard_log) if args.tensorboard_log else None,
        progress=args.progress,
        tracking=tracking_of(args),
        video_freq=args.video_freq,
        video_folder=Path(args.video_folder) if args.video_folder else None,
        evaluation_video=not args.no_eval_video,
        command=("vla-zoo", "train", *argv),
        args=vars(args),
    )


if __name__ == "__main__":
    raise SystemExit(guarded(run))
