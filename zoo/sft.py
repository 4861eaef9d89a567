"""`python -m zoo.sft --env MetaWorld/reach --dataset demos/reach`: learn a dataset's actions, then evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.cli.arguments import DEFAULT_NUM_ENVS, OneLineParser, add_fields, count
from zoo.cli.main import guarded, quiet_torch_in_ranks
from zoo.cli.run_flags import (
    DEFAULT_UPDATES,
    check_log_folder,
    find_stopped_run,
    open_new_finetuning,
    resolve_resumed_finetuning,
)
from zoo.cli.shared_flags import add_new_run_arguments
from zoo.config.algorithm_configs import SFTConfig
from zoo.config.gym_packages import import_named_packages
from zoo.config.run_config import RunConfig, sft_config
from zoo.imitation.weights import check_weighable

LEARNING_FIELDS = (
    *("batch_size", "micro_batch_size", "learning_rate", "augment", "paraphrases", "weight", "beta", "gamma"),
)
"""Fields of `SFTConfig` that `zoo.improve` takes, too."""


def parser() -> OneLineParser:
    """Return the flags of `zoo.sft`."""
    p = OneLineParser("zoo.sft", "Supervised fine-tuning on demonstrations, then an evaluation.")
    add_fields(p, RunConfig, "env", env={"metavar": "ID"})
    add_fields(p, SFTConfig, "dataset", "episodes", dataset={"metavar": "FOLDER"})
    add_learning_arguments(p, updates=f"updates (default: {DEFAULT_UPDATES})", weight="none")
    add_fields(p, SFTConfig, "privileged_coef")
    add_new_run_arguments(
        p,
        recipes="recipes of PPO",
        resume="a run folder: go on in place where it was stopped",
        params="settings of the environment and policy_kwargs, over the recipe's: chunk:8 image_size:64",
        num_envs={"help": "simulators of the evaluation", "default": str(DEFAULT_NUM_ENVS)},
        eval_freq={"help": "updates between evaluations; 0: at the end (default)", "metavar": "UPDATES"},
        save_freq={
            "help": "updates between checkpoints; 0: when stopped",
            "metavar": "UPDATES",
            "default": "a quarter of -n",
        },
    )
    return p


def add_learning_arguments(p: OneLineParser, *, updates: str, weight: str) -> None:
    """Add the flags that say how a dataset is learned; `updates` is the help of -n, `weight` the default in words."""
    p.add_argument("-n", "--n-updates", type=count, metavar="N", help=updates)
    add_fields(p, SFTConfig, *LEARNING_FIELDS, paraphrases={"metavar": "FILE"}, weight={"default": weight})


def run(argv: Sequence[str]) -> int:
    """Run the command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_named_packages(args)
    point = find_stopped_run(args.resume) if args.resume else None
    if point:
        check_log_folder(args, point)
    if point:
        config = resolve_resumed_finetuning(args, point)
    else:
        config, policy = open_new_finetuning(args)
    settings = sft_config(config)
    for folder in settings.folders:
        check_weighable(folder, settings.weight)
    quiet_torch_in_ranks()
    # Only now: torch and the simulators take seconds to import, a typo should not.
    from zoo.training.run_plan import TrainJob, checkpoint_policy
    from zoo.training.sft_trainer import finetune

    job = TrainJob(
        config=config,
        policy=checkpoint_policy(config, point.checkpoint) if point else policy,
        resume=point,
        log_folder=Path(args.log_folder or "logs"),
        command=("python", "-m", "zoo.sft", *argv),
        args=vars(args),
    )
    finetune(job)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
