"""A recipe's settings as they fit a policy, with the user's over them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vla_gym.errors import BadValue
from vla_policies.registry import family_class
from zoo.cli.policy_choice import PolicyChoice
from zoo.config.hyperparams import acting_recipe, deep_merge

_NESTED = ("policy", "policy_kwargs", "env_kwargs")
"""Settings of which the user's keys stand beside the recipe's."""


_PROGRAMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "lerobot": {
        "LIBERO": {"env_kwargs": {"protocol": "lerobot"}},
        "MetaWorld": {"env_kwargs": {"protocol": "lerobot"}},
    },
    "openpi": {"LIBERO": {"chunk": 5, "env_kwargs": {"protocol": "openvla-oft"}}},
}
"""Maker -> benchmark -> what its own evaluation sets: lerobot 0.4.4 envs/, and openpi 15a9616a examples/libero/main.py,
whose horizons and settle steps are those of OpenVLA-OFT."""


def recipe_to_act(env: str, family: str, *, by_recipe: bool) -> Mapping[str, Any]:
    """Return the settings of the recipe; of a checkpoint that is not read by the recipe's program without what is this
    program's: the options that say how it reads pictures, and the benchmark's protocol."""
    recipe = acting_recipe(env, family)
    block = recipe.get("policy", {})
    if by_recipe or "options" not in block:
        return recipe
    program, options = family_class(family).program_options, block["options"]
    if not set(program) & set(options):
        return recipe
    kept = {name: value for name, value in options.items() if name not in program}
    env_kwargs = {name: value for name, value in recipe.get("env_kwargs", {}).items() if name != "protocol"}
    return {**recipe, "policy": {**block, "options": kept}, "env_kwargs": env_kwargs}


def settings_to_act(env: str, policy: PolicyChoice, kwargs: Mapping[str, Any], *, by_recipe: bool) -> dict[str, Any]:
    """Return the recipe's settings for a policy that only acts, with the user's `policy_kwargs` over them.

    What it learns by does not matter, but for the denoising steps of RLinf's checkpoints, whose recipes these are. One
    that is not to be read by the recipe is played as its maker does.
    """
    recipe = recipe_to_act(env, policy.family, by_recipe=by_recipe)
    acting = {name: value for name, value in recipe.items() if name != "policy_kwargs"}
    if policy.maker == "rlinf" or policy.name.startswith("RLinf/"):
        acting |= _denoising_steps(recipe)
    elif not by_recipe:
        acting = merge(acting, _program(env, policy))
    return over_recipe(acting, policy, {"policy_kwargs": kwargs})


def _denoising_steps(recipe: Mapping[str, Any]) -> dict[str, Any]:
    options = recipe.get("policy_kwargs", {}).get("backbone_kwargs", {})
    return {"policy_kwargs": {"backbone_kwargs": {"num_steps": options["num_steps"]}}} if "num_steps" in options else {}


def _program(env: str, policy: PolicyChoice) -> dict[str, Any]:
    """What the program of the checkpoint's maker sets in this environment."""
    benchmark = re.split("[-/]", env, maxsplit=1)[0]
    known = _PROGRAMS.get(policy.maker or "", {}).get(benchmark, {})
    return {**known, **({} if policy.makers_chunk is None else {"chunk": policy.makers_chunk})}


def over_recipe(recipe: Mapping[str, Any], policy: PolicyChoice, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's settings as they fit the policy, with the user's over them.

    Raises `BadValue` for a chunk that the user gives and the checkpoint does not have.
    """
    tuned = {**recipe, **policy.env_options}
    fresh = dict(tuned.get("policy_kwargs", {}))
    options = fresh.pop("backbone_kwargs", {})
    if policy.fixed is not None:
        options = {name: value for name, value in options.items() if name not in policy.fixed}
        fresh |= {"backbone_kwargs": options} if options else {}
    tuned["policy_kwargs"] = deep_merge(fresh, policy.settings)
    merged = merge(tuned, overrides)
    merged.pop("policy", None)
    own = policy.env_options.get("chunk")
    if own is not None and merged["chunk"] != own:
        raise BadValue(
            f"policy '{policy.name}' decides {own} actions at once, got chunk={merged['chunk']}; leave chunk out"
        )
    return _with_chunk(merged, overrides, policy.chunk) if policy.takes_any_chunk else merged


def _with_chunk(values: dict[str, Any], overrides: Mapping[str, Any], usual: int | None) -> dict[str, Any]:
    """One chunk for environment and network: the user's, else the recipe's; `usual` is the checkpoint's."""
    kwargs = dict(values["policy_kwargs"])
    options = dict(kwargs.get("backbone_kwargs", {}))
    asked = options.get("chunk")
    if asked is not None and "chunk" in overrides and overrides["chunk"] != asked:
        raise BadValue(f"chunk={overrides['chunk']} and backbone_kwargs chunk: {asked} disagree; leave one out")
    chunk = values.get("chunk", 1) if asked is None or "chunk" in overrides else asked
    if asked is None and chunk == usual:
        return {**values, "chunk": chunk}
    return {**values, "chunk": chunk, "policy_kwargs": {**kwargs, "backbone_kwargs": {**options, "chunk": chunk}}}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge with `above` winning; of mappings in `policy`, `policy_kwargs` and `env_kwargs` the keys, at any depth."""
    merged = dict(below)
    for name, value in above.items():
        merged[name] = deep_merge(merged.get(name, {}), value) if name in _NESTED else value
    return merged
