"""`vla-zoo sft --env MetaWorld/reach --dataset demos/reach`: learn a dataset's actions, then evaluate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_policies.resolver import PolicyRef
from zoo.cli.arguments import DEFAULT_NUM_ENVS, OneLineParser, add_fields, count, key_values
from zoo.cli.main import guarded, quiet_torch_in_ranks
from zoo.cli.run_flags import (
    changed_flags,
    check_log_folder,
    given_evaluation,
    given_flags,
    seed_of,
    tuned_settings,
    with_start_states,
)
from zoo.cli.shared_flags import add_new_run_arguments
from zoo.config.algorithm_configs import SFTConfig, check_once
from zoo.config.gym_packages import import_named_packages
from zoo.config.run_config import (
    ENV_OPTIONS,
    TRAINING_ONLY,
    RunConfig,
    check_settings,
    env_options,
    sft_config,
)
from zoo.config.settings import Settings, annotations_of, anytime_of
from zoo.demonstrations.lerobot_reader import check_dataset
from zoo.files import quoted
from zoo.runs.folder import RunFolder, holds_policy
from zoo.runs.lookup import FINETUNING, ResumePoint, check_command, find_resume_point, find_run
from zoo.runs.monitor import lacks_evaluation

DEFAULT_UPDATES = 1000


def parser() -> OneLineParser:
    """Return the flags of `vla-zoo sft`."""
    p = OneLineParser("vla-zoo sft", "Supervised fine-tuning on demonstrations, then an evaluation.")
    add_fields(p, RunConfig, "env", env={"metavar": "ID"})
    add_fields(p, SFTConfig, "dataset", "episodes", dataset={"metavar": "FOLDER"})
    p.add_argument("-n", "--n-updates", type=count, metavar="N", help=f"updates (default: {DEFAULT_UPDATES})")
    learning = ("batch_size", "micro_batch_size", "learning_rate", "augment", "paraphrases", "privileged_coef")
    add_fields(p, SFTConfig, *learning, paraphrases={"metavar": "FILE"})
    add_new_run_arguments(
        p,
        recipes="recipes of PPO",
        resume="a run folder: go on in place where it was stopped",
        params="settings of the environment and policy_kwargs, over the recipe's: chunk:8 image_size:64",
        num_envs={"help": "simulators of the evaluation", "default": str(DEFAULT_NUM_ENVS)},
        eval_freq={"help": "updates between evaluations; 0: at the end", "metavar": "UPDATES", "default": "0"},
        save_freq={
            "help": "updates between checkpoints; 0: when stopped",
            "metavar": "UPDATES",
            "default": "a quarter of -n",
        },
    )
    return p


def open_new_finetuning(args: argparse.Namespace) -> tuple[RunConfig, PolicyRef]:
    """Return the configuration of a fresh run, and the policy that it starts from."""
    for name in ("env", "dataset"):
        if getattr(args, name) is None:
            raise BadValue(f"--{name} is missing. Example: vla-zoo sft --env MetaWorld/reach --dataset demos/reach")
    find_benchmark(args.env)
    given = check_settings("ppo", key_values(args.params), "-params")
    for name in given:
        if name != "policy_kwargs" and (name not in ENV_OPTIONS or name in TRAINING_ONLY):
            raise BadValue(f"-params {name}: fine-tuning takes settings of the environment and policy_kwargs only")
    policy, entry, values = tuned_settings(args, "ppo", given)
    run = given_flags(args, "eval_freq", "eval_episodes", "eval_tasks", "save_freq", "device", "num_threads")
    num_updates = args.n_updates or DEFAULT_UPDATES
    config = RunConfig(
        algo="sft",
        env=args.env,
        policy=policy.name,
        n_timesteps=num_updates,
        num_envs=args.num_envs or DEFAULT_NUM_ENVS,
        seed=seed_of(args),
        eval_options=given_evaluation(args, "ppo"),
        env_options=env_options(values, without=TRAINING_ONLY),
        policy_kwargs=values.get("policy_kwargs", {}),
        algo_kwargs=asdict(SFTConfig(**_with_datasets(given_flags(args, *_flags_of_sft(args))))),
        entry=entry,
        **{"eval_freq": 0, "save_freq": max(1, num_updates // 4), **run},
    )
    config = replace(config, num_envs=max(1, min(config.num_envs, config.eval_episodes)))
    config = with_start_states(config, asked=args.eval_episodes is not None)
    return config, policy.read_by(config.policy_kwargs)


def _flags_of_sft(args: argparse.Namespace) -> list[str]:
    return [name for name in annotations_of(SFTConfig) if hasattr(args, name)]


def _with_datasets(given: Settings) -> Settings:
    """Return flags with a single dataset as text; raises where one is named twice."""
    folders = given.get("dataset", ())
    check_once(folders, "--dataset")
    return {**given, "dataset": folders[0]} if len(folders) == 1 else given


def find_stopped_run(path: str) -> ResumePoint:
    """Return the checkpoint of a run that was stopped, which goes on in place.

    Raises `BadValue` for a run of another command, one that has ended, and one that left no checkpoint.
    """
    run = find_run(path)
    check_command(run, FINETUNING)
    if has_ended(run):
        raise BadValue(
            f"'{run.path}' has made all its {run.config().n_timesteps} updates; to learn more, start from its policy "
            f"with --policy {quoted(run.best)}"
        )
    point = find_resume_point(path, FINETUNING)
    if not point.in_place:
        raise BadValue(f"fine-tuning goes on in its own run folder only: -i {quoted(point.run.path)}")
    return point


def has_ended(run: RunFolder) -> bool:
    """Whether a run of fine-tuning was concluded: its checkpoints are gone, its policy was evaluated at the end."""
    return not run.saved_steps() and holds_policy(run.best) and not lacks_evaluation(run, run.config().n_timesteps)


def resolve_resumed_finetuning(args: argparse.Namespace, point: ResumePoint) -> RunConfig:
    """Return the stored configuration with the few flags that may change; raises `BadValue` for the others."""
    config = point.run.config()
    if args.n_updates is not None:
        raise BadValue(
            f"-n cannot change when a run goes on with -i: its learning rate falls to 0 over {config.n_timesteps} "
            "updates. To learn more, let it end, then start from its policy with --policy RUN/best"
        )
    changed = changed_flags(args, point.run, RunConfig, SFTConfig)
    given = {name: changed.pop(name) for name in anytime_of(SFTConfig) if name in changed}
    learning = replace(sft_config(config), **_with_datasets(given))
    for folder in learning.folders:
        if not folder.is_dir():
            raise BadValue(
                f"the dataset of '{point.run.path}' is not in '{folder}' (any more); if it was moved, say where "
                "it is with --dataset FOLDER, all of them if it learns from several"
            )
    return replace(config, algo_kwargs=asdict(learning), **changed)


def run(argv: Sequence[str]) -> int:
    """Run the command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_named_packages(args)
    point = find_stopped_run(args.resume) if args.resume else None
    if point:
        check_log_folder(args, point)
        config = resolve_resumed_finetuning(args, point)
    else:
        config, policy = open_new_finetuning(args)
    for folder in sft_config(config).folders:
        check_dataset(folder)
    quiet_torch_in_ranks()
    # Only now: torch and the simulators take seconds to import, a typo should not.
    from zoo.training.run_plan import TrainJob, checkpoint_policy
    from zoo.training.sft import finetune

    job = TrainJob(
        config=config,
        policy=checkpoint_policy(config, point.checkpoint) if point else policy,
        resume=point,
        log_folder=Path(args.log_folder or "logs"),
        command=("vla-zoo", "sft", *argv),
        args=vars(args),
    )
    finetune(job)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
