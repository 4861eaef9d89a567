"""From parsed flags to a checked `RunConfig`: everything a user can mistype is caught here.

Runs before torch or a simulator is imported, before anything is written, and downloads nothing unless
the policy is a Hub id and all else is right.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, unknown_name
from vla_gym.registry import find_benchmark
from vla_gym.vector.instructions import with_instructions
from zoo.cli.arguments import key_values
from zoo.config.algorithm_configs import check_algorithm
from zoo.config.hyperparams import load_hyperparams
from zoo.config.run_config import (
    RunConfig,
    benchmark_options,
    build_config,
    check_arithmetic,
    check_settings,
)
from zoo.hub.upload import check_repo
from zoo.runs.folder import RunFolder, longer
from zoo.runs.lookup import ResumePoint
from zoo.runs.monitor import lacks_evaluation
from zoo.runs.shipped_agents import local_or_shipped

_RUN_FLAGS = ("n_timesteps", "num_envs", "eval_freq", "eval_episodes", "save_freq")
"""Flags that stand above the setting of the same name."""
_SPREAD_FLAGS = ("pipeline_stages", "placement", "max_staleness", "offload_idle")
"""How the work is spread over processes, time and memory."""
_RESUME_FLAGS = (
    "n_timesteps",
    "eval_freq",
    "save_freq",
    "device",
    "num_threads",
    "on_worker_error",
    *_SPREAD_FLAGS,
)
"""What may change when a run goes on; anything else would make it another run."""
_LENGTHS = ("state_dim", "action_dim")
_CHOICES = ("family", "unnorm_key", "revision")
"""Settings of a policy that choose among, or within, published checkpoints."""
_HUB_ID = "a Hub id"
NEW_RUN_FLAGS = ("policy", "num_envs", "seed", "params", "conf_file", "eval_episodes")
"""What no run may change when it goes on."""


def check_services(args: argparse.Namespace) -> None:
    """Raise for a tracker or a Hub repository that cannot work, before anything runs."""
    if args.track is not None:
        from zoo.runs.loggers import check_tracker  # brings torch and TensorBoard

        check_tracker(args.track)
    if args.push_to_hub is not None:
        check_repo(args.push_to_hub)


def resolve_new_run(args: argparse.Namespace) -> RunConfig:
    """Configuration of a fresh run: flags over `-params` over the hyperparameter entry."""
    if args.env is None:
        raise BadValue(
            "--env is missing. Example: --env Toy-Reach, --env LIBERO-Spatial, --env LIBERO-Spatial/3"
        )
    algo = check_algorithm(args.algo or "ppo")
    suites = {task.suite for task in find_benchmark(args.env).tasks}
    overrides = check_settings(algo, key_values(args.params), "-params")
    conf_file = None if args.conf_file is None else Path(args.conf_file)
    policy = resolve_policy(
        "nano" if args.policy is None else args.policy,
        suite=suites.pop() if len(suites) == 1 else None,
        settings=overrides.get("policy_kwargs", {}),
    )
    hyperparams = load_hyperparams(algo, args.env, policy.family, conf_file)
    values = over_recipe(hyperparams.values, policy, overrides)
    flags = {name: getattr(args, name) for name in _RUN_FLAGS if getattr(args, name) is not None}
    if args.on_worker_error is not None:
        flags["on_worker_error"] = args.on_worker_error
    config = build_config(
        algo=algo,
        env=args.env,
        policy=policy.name,
        values={**values, **flags},
        seed=args.seed if args.seed is not None else secrets.randbits(32),
        device="auto" if args.device is None else args.device,
        num_threads=args.num_threads,
        entry=hyperparams.entry,
    )
    config = replace(config, **{name: getattr(args, name) for name in _SPREAD_FLAGS if getattr(args, name)})
    check_benchmark_options(config)
    return config


def resolve_resumed_run(args: argparse.Namespace, point: ResumePoint) -> RunConfig:
    """The stored configuration with the few flags that may change; raises `BadValue` for the others.

    A run that was stopped when all its steps were done has its last evaluation left.
    """
    config = stored = point.run.config()
    check_same_run(args, point.run, same=("algo", "env"), fixed=NEW_RUN_FLAGS, allowed=_RESUME_FLAGS)
    changed = {name: getattr(args, name) for name in _RESUME_FLAGS if getattr(args, name) is not None}
    on_worker_error = changed.pop("on_worker_error", None)
    if on_worker_error is not None:
        changed["env_options"] = {**config.env_options, "on_worker_error": on_worker_error}
    config = replace(config, **changed)
    check_arithmetic(config)
    as_asked = point.in_place and config.n_timesteps == stored.n_timesteps
    if config.n_timesteps <= point.step and not (as_asked and lacks_evaluation(point.run, point.step)):
        raise BadValue(
            f"'{point.run.path}' has done {point.step} of {config.n_timesteps} simulator steps already: "
            f"give a larger total with -n, e.g. -n {longer(config.n_timesteps, point.step)}"
        )
    return config


def check_same_run(
    args: argparse.Namespace,
    run: RunFolder,
    *,
    same: Sequence[str],
    fixed: Sequence[str],
    allowed: Sequence[str],
) -> None:
    """Raise `BadValue` for a flag of `same` that is not as in the run, and for any of `fixed`; name the `allowed`."""
    config = run.config()
    for name in same:
        given = getattr(args, name)
        if given is not None and given != getattr(config, name):
            raise BadValue(f"--{name} {given} does not fit the run: '{run.path}' is {getattr(config, name)}")
    for name in fixed:
        if getattr(args, name) not in (None, []):
            raise BadValue(
                f"{_flag(name)} cannot change when a run goes on with -i; allowed: "
                f"{', '.join(map(_flag, allowed))}"
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """What a policy name means."""

    name: str
    """As the policy class takes it: a family name, or a checkpoint folder."""
    family: str
    """Which family's hyperparameters fit."""
    env_options: Mapping[str, Any]
    """Keyword arguments of `make_vec` that a checkpoint asks for; empty for fresh weights."""
    settled: Collection[str] | None
    """Which of a hyperparameter entry's `backbone_kwargs` a checkpoint has settled, so that they do not apply: all
    where it is one of ours (None), `lora` where it is an adapter."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """`state_dim` and `action_dim` of the environment that a checkpoint of ours was made for; empty for others."""


def resolve_policy(
    name: str, *, suite: str | None = None, settings: Mapping[str, Any] | None = None
) -> PolicyChoice:
    """A family name, a checkpoint folder or a Hub id (which is downloaded).

    `suite` and `settings` (the user's `policy_kwargs`) choose between the ways to read a published checkpoint.
    Raises `UnknownName` or `BadValue` for what is none of them.
    """
    from vla_policies.registry import FAMILIES, family_class

    given = settings or {}
    if not name.strip():
        raise unknown_name("policy", name, FAMILIES)
    if name in FAMILIES:
        _check_family_choices(name, given)
        return PolicyChoice(name=name, family=name, env_options={}, settled=())
    folder = local_or_shipped(name)
    if not folder.is_dir():
        if "/" not in name:
            raise unknown_name("policy", name, FAMILIES)
        from vla_policies.loading import find_checkpoint

        found = find_checkpoint(name, revision=given.get("revision"))
        assert found is not None, "a family was handled above"
        folder = found
    stored = _read_config(folder)
    lengths: Mapping[str, int] = {}
    if "family" in stored:
        family, fits = str(stored["family"]), False
        cameras, chunk = stored["conventions"]["cameras"], stored["conventions"]["chunk"]
        lengths = {name: stored["conventions"][name] for name in _LENGTHS if name in stored["conventions"]}
        if family not in FAMILIES:
            raise unknown_name(f"policy family (in {folder / 'config.json'})", family, FAMILIES)
        _check_choices(name, family, given, what="a folder" if local_or_shipped(name).is_dir() else _HUB_ID)
    else:
        from vla_policies.backbone import Request
        from vla_policies.loading import read_header

        request = Request(
            family=given.get("family"),
            unnorm_key=given.get("unnorm_key"),
            suite=suite,
            options=given.get("backbone_kwargs") or {},
        )
        header = read_header(folder, request)
        family, cameras, chunk = header.family, header.conventions.cameras, header.conventions.chunk
        fits = family_class(family).fits_environment
    return PolicyChoice(
        # A Hub id says more to others than the place of its copy here.
        name=str(folder) if local_or_shipped(name).is_dir() else name,
        family=family,
        env_options={} if fits else {"chunk": chunk, "wrist_camera": "wrist_image" in cameras},
        settled=_settled(folder, stored),
        lengths=lengths,
    )


def _settled(folder: Path, stored: Mapping[str, Any]) -> Collection[str] | None:
    if stored:
        return None if "family" in stored else ()
    # An adapter: ours says how it was trained.
    return None if (folder / "vla_zoo.json").is_file() else ("lora",)


def _check_family_choices(name: str, given: Mapping[str, Any]) -> None:
    """Raise for settings that choose within a checkpoint where a family's name means fresh weights."""
    from vla_policies.registry import family_class

    if any(given.get(key) is not None for key in _CHOICES):  # the class brings torch
        family = family_class(name)
        fresh = family.published is None or family.wants_fresh(given.get("backbone_kwargs") or {})
        _check_choices(name, name, given if fresh else {"family": given.get("family")}, what="fresh weights")


def _check_choices(name: str, family: str, given: Mapping[str, Any], *, what: str) -> None:
    """Raise for another family than it is, and for statistics and revisions where `name` has none."""
    from vla_policies.registry import family_class

    wanted, key, revision = (given.get(choice) for choice in _CHOICES)
    if wanted is not None and family_class(wanted).family != family:
        raise BadValue(f"policy '{name}' is of family '{family}', got family='{wanted}'; leave family out")
    if key is not None:
        raise BadValue(
            f"policy '{name}' ({what}) has no action statistics to choose from, got unnorm_key='{key}'; leave it out"
        )
    if revision is not None and what != _HUB_ID:
        raise BadValue(f"policy '{name}' is {what}, only Hub ids have revisions, got revision='{revision}'")


def _read_config(folder: Path) -> Mapping[str, Any]:
    """`config.json` of a policy's folder, checked where it is in our own layout; {} of an adapter's, which has none."""
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        return {}
    try:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "family" in stored or not {"model_type", "type", "action_horizon"} & set(stored):
            _ = stored["family"], stored["conventions"]["cameras"], stored["conventions"]["chunk"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadValue(
            f"policy folder '{folder}' has no readable config.json with 'family' and 'conventions'"
        ) from error
    found: Mapping[str, Any] = stored
    return found


def check_benchmark_options(config: RunConfig) -> None:
    """Build the benchmark's description with the run's options: a typo in one of them shows here."""
    benchmark = find_benchmark(config.env, **benchmark_options(config.env_options))
    with_instructions(benchmark, config.env_options.get("instructions", {}))
    grid = sum(task.num_trials for task in benchmark.tasks)
    if config.eval_episodes > grid:
        raise BadValue(
            f"eval_episodes={config.eval_episodes} is more than the {grid} start states of {config.env}; "
            f"at most --eval-episodes {grid}"
        )


def over_recipe(
    recipe: Mapping[str, Any], policy: PolicyChoice, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """A recipe's settings as they fit the policy, with the user's over them."""
    tuned = {**recipe, **policy.env_options}
    fresh = dict(tuned.get("policy_kwargs", {}))
    options = fresh.pop("backbone_kwargs", {})
    if policy.settled is not None:
        options = {name: value for name, value in options.items() if name not in policy.settled}
        fresh |= {"backbone_kwargs": options} if options else {}
    tuned["policy_kwargs"] = fresh
    return _merge(tuned, overrides)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` wins; of two mappings (policy_kwargs, env_kwargs) the keys are merged one level deep."""
    merged = dict(below)
    for name, value in above.items():
        if name in ("policy_kwargs", "env_kwargs"):
            value = {**merged.get(name, {}), **value}
        merged[name] = value
    return merged
