"""What a recipe starts from and comes to, without the flags of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_policies.registry import FAMILIES
from zoo.config.hyperparams import acting_recipe
from zoo.train import parser, resolve_run
from zoo.training.run_plan import RunPlan


def acting_settings(env: str, policy: str) -> tuple[str, Mapping[str, Any]]:
    """Return the checkpoint that a policy's name means where it acts, and the settings that name its parts."""
    block = acting_recipe(env, policy).get("policy", {}) if policy in FAMILIES else {}
    return block.get("checkpoint", policy), {name: block[name] for name in ("revision", "base") if name in block}


def published_plan(algo: str, env: str, policy: str) -> RunPlan:
    """Return the plan of a recipe on one process."""
    args = parser().parse(["--algo", algo, "--env", env, "--policy", policy, "--seed", "0"])
    return RunPlan.resolve(resolve_run(args)[0], 1)
