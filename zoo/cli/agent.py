"""A policy and its environment for the commands that roll one out: `evaluate`, `enjoy` and `record_video`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark, StartState
from vla_gym.vector.instructions import with_instructions
from zoo.cli.arguments import key_values
from zoo.cli.run_flags import PolicyChoice, resolve_policy
from zoo.config.gym_packages import import_gym_packages, import_packages_of
from zoo.config.hyperparams import load_hyperparams
from zoo.config.run_config import benchmark_options, check_settings, env_options
from zoo.evaluation.evaluator import choose_start_states
from zoo.hub.download import download_run, is_remote
from zoo.runs.folder import ARGS_FILE, folder_name
from zoo.runs.lookup import find_run, policy_folder
from zoo.runs.shipped_agents import is_shipped

if TYPE_CHECKING:
    from vla_gym import VLAVectorEnv
    from vla_policies import VLAPolicy

_DEFAULT_NUM_ENVS = 4
_TRAINING_ONLY = ("group_size", "num_workers", "reward", "reward_scale", "on_worker_error")


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """What to roll out, checked; nothing heavy has been loaded for it."""

    env: str
    """Environment id."""
    policy: str
    """Family name or checkpoint folder."""
    suite: str | None
    """Suite of the tasks, where it is one."""
    unnorm_key: str | None
    """Data set whose action statistics a published checkpoint is to use."""
    env_options: Mapping[str, Any]
    """Keyword arguments of `make_vec`, those of training left out."""
    num_envs: int
    """Slots."""
    cells: tuple[StartState, ...]
    """Start states, task-major."""
    output_folder: Path | None
    """Run folder the policy comes from, if it comes from one here; results belong there."""
    departures: tuple[str, ...] = ()
    """In what this is not the run's own protocol and policy, as words for a file name; empty without a run."""

    def named(self, stem: str) -> str:
        """`stem` and the departures: what a file in the run folder is called, without its suffix."""
        return "_".join([stem, *self.departures])


def plan_rollout(
    args: argparse.Namespace, *, episodes: int | None, n_timesteps: int | None = None
) -> RolloutPlan:
    """Resolve the selectors of `zoo.cli.arguments.add_policy_arguments`; `episodes` None means the whole grid.

    `n_timesteps` stands above `episodes`: as many as last so many simulator steps when none is solved.
    """
    if (args.run is None) == (args.policy is None):
        raise BadValue(
            "give either -i RUN (a trained policy) or --policy NAME (a family or a folder), not both or none"
        )
    import_gym_packages(args.gym_packages)
    if args.run is not None:
        remote = is_remote(args.run)
        run = download_run(args.run) if remote else find_run(args.run)
        if not remote:  # what others published imports nothing unasked
            import_packages_of(run.path / ARGS_FILE)
        config = run.config()
        env, options = args.env or config.env, dict(config.env_options)
        output_folder = None if remote or is_shipped(run.path) else run.path
        folder = policy_folder(str(run.path) if remote else args.run)
        policy = resolve_policy(str(folder))
        departures = [] if env == config.env else [folder_name(env)]
        if folder.resolve() != policy_folder(str(run.path)).resolve():
            departures.append(folder.name)
    else:
        if args.env is None:
            raise BadValue("--env is missing: say where to roll the policy out, e.g. --env LIBERO-Spatial")
        policy = resolve_policy(args.policy, suite=_suite(args.env), settings={"unnorm_key": args.unnorm_key})
        values = load_hyperparams("ppo", args.env, policy.family).values
        options = env_options(values)
        env, output_folder, departures = args.env, None, []
    options.update(policy.env_options)
    own = dict(options)
    options.update(_own_options(args.params))
    options = {name: value for name, value in options.items() if name not in _TRAINING_ONLY}
    options["on_worker_error"] = args.on_worker_error
    if args.split is not None:
        options["split"] = args.split
    if args.instructions is not None:
        options["instructions"] = read_instructions(Path(args.instructions))
    if args.run is not None:
        departures += _changes(own, options, args)
    benchmark = find_benchmark(env, **benchmark_options(options))
    with_instructions(benchmark, options.get("instructions", {}))  # a wrong name shows here
    _check_lengths(policy, benchmark, reads_state=options.get("state", True))
    if n_timesteps is not None:
        grid = sum(task.num_trials for task in benchmark.tasks)
        episodes = min(grid, -(-n_timesteps // max(task.horizon for task in benchmark.tasks)))
    cells = choose_start_states(benchmark.tasks, episodes)
    return RolloutPlan(
        env=env,
        policy=policy.name,
        suite=_suite(env),
        unnorm_key=args.unnorm_key,
        env_options=options,
        num_envs=min(args.num_envs or _DEFAULT_NUM_ENVS, len(cells)),
        cells=tuple(cells),
        output_folder=output_folder,
        departures=tuple(departures),
    )


def _check_lengths(policy: PolicyChoice, benchmark: Benchmark, *, reads_state: bool) -> None:
    """Raise `BadValue` for a policy that was made for other states or actions, before simulators start."""
    from vla_policies.conventions import check_lengths

    check_lengths(
        policy.lengths,
        {"state_dim": benchmark.state_dim if reads_state else 0, "action_dim": benchmark.action_dim},
    )


def _changes(own: Mapping[str, Any], options: Mapping[str, Any], args: argparse.Namespace) -> list[str]:
    """What the flags changed of the run's `own` options, and sampled actions; each as a word for a file name."""
    own = {"split": "train", "instructions": {}, **own}
    words = []
    for name, value in options.items():
        if name == "on_worker_error" or value == own.get(name):
            continue
        if name == "instructions":
            words.append(Path(args.instructions).stem)
        else:
            words.append(str(value) if name == "split" else f"{name}-{value}")
    words += ["stochastic"] if args.stochastic else []
    return [re.sub(r"[^\w.-]+", "-", word).strip("-") for word in words]


def _own_options(params: Sequence[str]) -> dict[str, Any]:
    """The benchmark's own options in `-params`; all else about the environment is as the policy has learnt it."""
    given = check_settings("ppo", key_values(params), "-params")
    for name in given:
        if name != "env_kwargs":
            raise BadValue(
                f"-params {name}: a policy that is rolled out takes the benchmark's own options only, such as "
                "-params 'env_kwargs:{protocol: lerobot}'"
            )
    own: dict[str, Any] = given.get("env_kwargs", {})
    return own


def read_instructions(path: Path) -> dict[str, str]:
    """A YAML file that maps task names to instructions; raises `BadValue` for anything else."""
    try:
        texts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadValue(f"--instructions {path}: {' '.join(str(error).split())}") from error
    if not isinstance(texts, dict):
        raise BadValue(
            f"--instructions {path} must map task names to instructions, got {type(texts).__name__}"
        )
    return texts


def _suite(env: str) -> str | None:
    """The one suite of the environment's tasks; None for several."""
    suites = {task.suite for task in find_benchmark(env).tasks}
    return suites.pop() if len(suites) == 1 else None


def open_rollout(
    plan: RolloutPlan, *, device: str, num_threads: int | None, seed: int, every_step: bool = False
) -> tuple[VLAPolicy, VLAVectorEnv]:
    """Make the environment and load the policy; the caller closes the environment.

    With `every_step` the environment is stepped by single actions, whatever the policy's chunk.
    """
    import torch
    from gymnasium import spaces

    from vla_gym import make_vec
    from vla_policies import VLAPolicy
    from zoo.distributed.devices import check_device

    torch.manual_seed(seed)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    where = check_device(device)
    options = {**plan.env_options, **({"chunk": 1} if every_step else {})}
    envs = make_vec(plan.env, plan.num_envs, autoreset_mode="disabled", **options)
    shape_KA = (plan.env_options.get("chunk", 1), envs.benchmark.action_dim)
    try:
        policy = VLAPolicy.from_pretrained(
            plan.policy,
            unnorm_key=plan.unnorm_key,
            suite=plan.suite,
            action_spec=envs.benchmark.action_spec,
            observation_space=envs.as_sb3().observation_space,
            action_space=spaces.Box(-1.0, 1.0, shape_KA),
            device=where,
        )
    except BaseException:
        envs.close()
        raise
    policy.set_training_mode(False)
    return policy, envs
