"""The constructors of PPO and GRPO: their parameters are the fields of `PPOConfig` and `GRPOConfig`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Any

from vla_gym.errors import BadValue
from zoo.config.algorithm_configs import OnPolicyConfig
from zoo.config.settings import annotations_of, check_fields, unknown_setting

RUN_ARGUMENTS: Mapping[str, object] = {
    "stats_window_size": 100,
    "tensorboard_log": None,
    "policy_kwargs": None,
    "verbose": 0,
    "seed": None,
    "device": "auto",
}
"""Stable-Baselines3's parameters that are no settings of the algorithm, and their defaults."""


def constructor_signature(config: type[OnPolicyConfig], positional: Sequence[str]) -> Signature:
    """Return the signature: policy, env, the `positional` settings, and all others and `RUN_ARGUMENTS` by name."""
    defaults = {field.name: field.default for field in fields(config)}
    kinds = annotations_of(config)
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("policy", "env")]
    for name in (*positional, *(name for name in defaults if name not in positional)):
        kind = Parameter.POSITIONAL_OR_KEYWORD if name in positional else Parameter.KEYWORD_ONLY
        parameters.append(Parameter(name, kind, default=defaults[name], annotation=kinds[name]))
    for name, default in RUN_ARGUMENTS.items():
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default))
    return Signature(parameters)


def bound_arguments(
    algorithm: Callable[..., Any], config: type[OnPolicyConfig], args: Sequence[Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all arguments of a constructor's call, checked.

    A schedule may be a function of the remaining progress, as in Stable-Baselines3. Raises `UnknownName` or `BadValue`
    for settings that `config` does not allow.
    """
    signature, kinds = Signature.from_callable(algorithm), annotations_of(config)
    for name in given:
        if name not in signature.parameters:
            raise unknown_setting(signature.parameters, name, config.__name__.removesuffix("Config"))
    try:
        bound = signature.bind(*args, **given)
    except TypeError as error:
        raise BadValue(f"{config.__name__.removesuffix('Config')}: {error}") from error
    bound.apply_defaults()
    values = {name: value for name, value in bound.arguments.items() if name in kinds and not callable(value)}
    checked = check_fields(kinds, values, config.__name__.removesuffix("Config"))
    return {**bound.arguments, **checked}
