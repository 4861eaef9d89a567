"""What a recipe starts from and comes to, without the flags of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_gym.registry import find_benchmark
from vla_policies.registry import FAMILIES
from zoo.cli.policy_choice import resolve_policy
from zoo.cli.recipe import over_recipe
from zoo.config.hyperparams import acting_recipe, load_hyperparams
from zoo.config.run_config import build_config
from zoo.training.run_plan import RunPlan


def acting_settings(env: str, policy: str) -> tuple[str, Mapping[str, Any]]:
    """Return the checkpoint that a policy's name means where it acts, and the settings that name its parts."""
    block = acting_recipe(env, policy).get("policy", {}) if policy in FAMILIES else {}
    return block.get("checkpoint", policy), {name: block[name] for name in ("revision", "base") if name in block}


def recipe_plan(algo: str, env: str, family: str) -> RunPlan:
    """Return the plan of a recipe under its family's bare name, on one process."""
    recipe = load_hyperparams(algo, env, family)
    policy = resolve_policy(
        family,
        suite=find_benchmark(env).suite,
        start_of=lambda _: recipe.values.get("policy", {}),
        action_dim=find_benchmark(env).action_dim,
    )
    values = over_recipe(recipe.values, policy, {})
    config = build_config(algo=algo, env=env, policy=policy.name, values=values, seed=0, entry=recipe.entry)
    return RunPlan.resolve(config, 1)
