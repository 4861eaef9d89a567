"""`python -m zoo.sft --env MetaWorld/reach --dataset demos/reach`: learn a dataset's actions, then evaluate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from zoo.cli.arguments import (
    OneLineParser,
    add_gym_packages_argument,
    count,
    count_or_zero,
    seed,
)
from zoo.cli.main import guarded, hush_ranks
from zoo.cli.sft_flags import (
    DEFAULT_NUM_ENVS,
    DEFAULT_UPDATES,
    find_stopped_run,
    resolve_new_finetuning,
    resolve_resumed_finetuning,
)
from zoo.config.algorithm_configs import SFTConfig
from zoo.config.gym_packages import import_gym_packages
from zoo.config.run_config import sft_config
from zoo.config.settings import defaults_of
from zoo.demonstrations.lerobot_reader import check_dataset


def parser() -> OneLineParser:
    """The flags of `zoo.sft`."""
    sft = defaults_of(SFTConfig)
    p = OneLineParser("zoo.sft", "Supervised fine-tuning on demonstrations, then an evaluation.")
    p.add_argument("--env", metavar="ID", help="environment the policy is for, e.g. MetaWorld/reach")
    p.add_argument(
        "--dataset",
        nargs="+",
        metavar="FOLDER",
        help="LeRobotDataset v3.0, e.g. of zoo.collect; several are learned together",
    )
    p.add_argument(
        "--episodes", type=count, metavar="N", help="learn the first N episodes of each only (default: all)"
    )
    p.add_argument(
        "--policy", metavar="NAME", help="family name, checkpoint folder or Hub id (default: nano)"
    )
    p.add_argument("-n", "--n-updates", type=count, metavar="N", help=f"updates (default: {DEFAULT_UPDATES})")
    p.add_argument(
        "--batch-size",
        type=count,
        metavar="B",
        help=f"frames per update, all processes together (default: {sft['batch_size']})",
    )
    p.add_argument(
        "--micro-batch-size",
        type=count,
        metavar="M",
        help="of these, in the network at a time (default: all)",
    )
    p.add_argument(
        "--learning-rate",
        type=_rate,
        metavar="LR",
        help=f"at the start, then down to 0 (default: {sft['learning_rate']})",
    )
    p.add_argument(
        "--augment",
        action="store_true",
        default=None,
        help="shift the pictures at random and change their light and colours",
    )
    p.add_argument("--seed", type=seed, metavar="S", help="seed of everything (default: drawn and stored)")
    p.add_argument(
        "-f", "--log-folder", default="logs", metavar="DIR", help="where run folders go (default: logs)"
    )
    p.add_argument("-i", "--resume", metavar="RUN", help="a run folder: go on in place where it was stopped")
    p.add_argument(
        "-params",
        "--params",
        nargs="+",
        default=[],
        metavar="KEY:VALUE",
        help="settings of the environment and policy_kwargs, over the recipe's: chunk:8 image_size:64",
    )
    p.add_argument(
        "-conf", "--conf-file", metavar="FILE", help="YAML file instead of the packaged recipes of PPO"
    )
    p.add_argument(
        "--num-envs",
        type=count,
        metavar="N",
        help=f"simulators of the evaluation (default: {DEFAULT_NUM_ENVS})",
    )
    p.add_argument(
        "--eval-episodes", type=count_or_zero, metavar="N", help="episodes of an evaluation; 0: none"
    )
    p.add_argument(
        "--eval-freq",
        type=count_or_zero,
        metavar="UPDATES",
        help="updates between evaluations; 0: at the end (default)",
    )
    p.add_argument(
        "--save-freq",
        type=count_or_zero,
        metavar="UPDATES",
        help="updates between checkpoints; 0: when stopped (default)",
    )
    p.add_argument("--device", metavar="D", help="torch device: auto, cpu, cuda (default: auto)")
    p.add_argument(
        "--num-threads", type=count, metavar="N", help="torch CPU threads (default: torch's choice)"
    )
    add_gym_packages_argument(p)
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_gym_packages(args.gym_packages)
    point = find_stopped_run(args.resume) if args.resume else None
    config = resolve_resumed_finetuning(args, point) if point else resolve_new_finetuning(args)
    for folder in sft_config(config).folders:
        check_dataset(folder)
    hush_ranks()
    # Only now: torch and the simulators take seconds to import, a typo should not.
    from zoo.imitation.finetuning import FinetuningRequest, finetune

    request = FinetuningRequest(
        config=config,
        resume=point,
        log_folder=Path(args.log_folder),
        command=("python", "-m", "zoo.sft", *argv),
        args=vars(args),
    )
    finetune(request)
    return 0


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"must be a number in 0 .. 1, e.g. 1e-3, got '{text}'")
    return value


def main() -> int:
    """Entry point of `python -m zoo.sft`."""
    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
