"""`-i` and `--policy` of `zoo.serve` become a policy to serve; nothing heavy is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_policies.registry import FAMILIES
from vla_policies.resolver import PolicyRef
from zoo.agents.recipe import check_acting, find_policy, policy_env_options, recipe_to_act, settings_to_act
from zoo.cli.agent import given_settings, open_run, options_to_act, policy_kwargs_of
from zoo.config.gym_packages import import_named_packages
from zoo.config.run_config import benchmark_options, env_options
from zoo.evaluation.protocol import EvaluationProtocol
from zoo.hub.download import is_remote
from zoo.runs.folder import CONFIG_FILE, holds_policy
from zoo.runs.shipped_agents import local_or_shipped
from zoo.serving.declaration import ServicePlan


def plan_service(args: argparse.Namespace) -> ServicePlan:
    """Resolve the policy and the environment whose conventions hold; raises `BadValue` or `UnknownName`."""
    import_named_packages(args)
    if (args.run is None) == (args.policy is None):
        raise BadValue("give either -i RUN|CHECKPOINT or --policy NAME (a family or a Hub id), not both or none")
    if args.run is None:
        return _plan(args, args.policy, {})
    if not is_remote(args.run) and _is_policy_alone(local_or_shipped(args.run)):
        return _plan(args, str(local_or_shipped(args.run)), {})
    run, folder = open_run(args.run)
    config = run.config()
    return _plan(args, str(folder), config.env_options, env=config.env)


def _is_policy_alone(folder: Path) -> bool:
    """Whether a folder holds a policy, and neither is a run nor lies in one."""
    inside = any((parent / CONFIG_FILE).is_file() for parent in (folder, *folder.resolve().parents[:2]))
    return holds_policy(folder) and not inside


def _plan(args: argparse.Namespace, policy: str, trained: Mapping[str, Any], *, env: str | None = None) -> ServicePlan:
    env = args.env or env
    benchmark = None if env is None else find_benchmark(env)
    given = given_settings(args.params)
    if others := [name for name in given if name != "policy_kwargs"]:
        raise BadValue(
            f"-params {others[0]}: a policy that is served takes policy_kwargs only; --env has its conventions"
        )
    kwargs = policy_kwargs_of(args, given)
    by_recipe = policy in FAMILIES

    def start_of(family: str) -> Mapping[str, Any]:
        return {} if env is None or trained else recipe_to_act(env, family, by_recipe=by_recipe).get("policy", {})

    choice, own = find_policy(policy, kwargs, start_of, benchmark=benchmark, trained=bool(trained), to_act=True)
    check_acting(choice, EvaluationProtocol(sample=args.stochastic), kwargs)
    options = {} if env is None else _options(trained, choice)
    if env is not None and not trained:
        values = settings_to_act(env, choice, own, kwargs, by_recipe=by_recipe)
        kwargs, options = values["policy_kwargs"], _options(env_options(values), choice)
    if env is not None:
        find_benchmark(env, **benchmark_options(options))
    return ServicePlan(
        name=args.run or args.policy,
        policy=choice.read_by(kwargs),
        env=env,
        env_options=options,
        policy_kwargs=kwargs,
    )


def _options(own: Mapping[str, Any], choice: PolicyRef) -> dict[str, Any]:
    """Return the options of the run's or the recipe's environment, as the policy needs them."""
    return options_to_act({**own, **policy_env_options(choice)})
