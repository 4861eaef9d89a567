"""`python -m zoo.sft --env MetaWorld/reach --dataset demos/reach`: learn a dataset's actions, then evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from zoo.cli.arguments import DEFAULT_NUM_ENVS, OneLineParser, count, frames, number
from zoo.cli.main import guarded, quiet_torch_in_ranks
from zoo.cli.run_flags import (
    DEFAULT_UPDATES,
    check_log_folder,
    find_stopped_run,
    resolve_new_finetuning,
    resolve_resumed_finetuning,
)
from zoo.cli.shared_flags import add_new_run_arguments
from zoo.config.algorithm_configs import FrameWeight, SFTConfig
from zoo.config.gym_packages import import_named_packages
from zoo.config.run_config import sft_config
from zoo.config.settings import defaults_of
from zoo.imitation.weights import check_weighable


def parser() -> OneLineParser:
    """The flags of `zoo.sft`."""
    p = OneLineParser("zoo.sft", "Supervised fine-tuning on demonstrations, then an evaluation.")
    p.add_argument("--env", metavar="ID", help="environment the policy is for, e.g. MetaWorld/reach")
    p.add_argument(
        "--dataset",
        nargs="+",
        metavar="FOLDER",
        help="LeRobotDataset v3.0, e.g. of zoo.collect; several are learned together",
    )
    p.add_argument("--episodes", type=count, metavar="N", help="learn the first N episodes of each only (default: all)")
    add_learning_arguments(p, updates=f"updates (default: {DEFAULT_UPDATES})", weight="none")
    p.add_argument(
        "--privileged-coef",
        type=number(lambda coef: 0.0 <= coef <= 1000.0, "a number in 0 .. 1000"),
        metavar="X",
        help="learn beside the actions to tell what the expert saw (places of hand, things and goal), with this weight "
        f"(default: {defaults_of(SFTConfig)['privileged_coef']:g})",
    )
    add_new_run_arguments(
        p,
        steps="updates",
        eval_default="0: at the end (default)",
        save_default="0: when stopped (default: a quarter of -n)",
        num_envs=f"simulators of the evaluation (default: {DEFAULT_NUM_ENVS})",
        params="settings of the environment and policy_kwargs, over the recipe's: chunk:8 image_size:64",
        recipes="recipes of PPO",
        resume="a run folder: go on in place where it was stopped",
    )
    return p


def add_learning_arguments(p: OneLineParser, *, updates: str, weight: str) -> None:
    """Add the flags that say how a dataset is learned; `updates` is the help of -n, `weight` the default in words."""
    sft = defaults_of(SFTConfig)
    p.add_argument("-n", "--n-updates", type=count, metavar="N", help=updates)
    p.add_argument(
        "--batch-size",
        type=frames,
        metavar="B",
        help=f"frames per update, all processes together (default: {sft['batch_size']})",
    )
    p.add_argument(
        "--micro-batch-size",
        type=frames,
        metavar="M",
        help="of these, in the network at a time (default: all)",
    )
    p.add_argument(
        "--learning-rate",
        type=number(lambda rate: 0.0 < rate < 1.0, "a number in 0 .. 1, e.g. 1e-3"),
        metavar="LR",
        help=f"at the start, then down to 0 (default: {sft['learning_rate']})",
    )
    p.add_argument(
        "--augment",
        action="store_true",
        default=None,
        help="shift the pictures at random and change their light and colours",
    )
    p.add_argument(
        "--paraphrases",
        metavar="FILE",
        help="YAML of taught sentence: [other sentences]; each frame of an update is shown with one, drawn anew",
    )
    p.add_argument(
        "--weight",
        choices=get_args(FrameWeight),
        help="learn every frame alike (none), solved episodes alone (success), or each frame by its advantage "
        f"(default: {weight})",
    )
    p.add_argument(
        "--beta",
        type=number(lambda beta: 0.0 < beta <= 100.0, "a number above 0, at most 100"),
        metavar="B",
        help=f"temperature of --weight advantage: small prefers the best frames more (default: {sft['beta']:g})",
    )
    p.add_argument(
        "--gamma",
        type=number(lambda gamma: 0.0 <= gamma <= 1.0, "a number in 0 .. 1"),
        metavar="X",
        help=f"discount of its returns, per simulator step (default: {sft['gamma']})",
    )


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_named_packages(args)
    point = find_stopped_run(args.resume) if args.resume else None
    if point:
        check_log_folder(args, point)
    config = resolve_resumed_finetuning(args, point) if point else resolve_new_finetuning(args)
    settings = sft_config(config)
    for folder in settings.folders:
        check_weighable(folder, settings.weight)
    quiet_torch_in_ranks()
    # Only now: torch and the simulators take seconds to import, a typo should not.
    from zoo.training.sft_trainer import finetune
    from zoo.training.trainer import TrainJob

    job = TrainJob(
        config=config,
        resume=point,
        log_folder=Path(args.log_folder or "logs"),
        command=("python", "-m", "zoo.sft", *argv),
        args=vars(args),
    )
    finetune(job)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
