"""Checks of what users give PPO and GRPO: the constructor's arguments, and the file that `load` reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from io import BufferedIOBase
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import json_to_data, open_path
from stable_baselines3.ppo import PPO as SB3PPO

from vla_gym.errors import BadValue, shown
from zoo.config.algorithm_configs import OnPolicyConfig, PPOConfig
from zoo.config.settings import annotations_of, check_fields, defaults_of

CHUNK_SETTINGS = (
    *("recompute_logprobs", "logprob_level", "entropy_level", "kl_coef", "reward_level", "value_level"),
    *("bootstrap_time_limit", "bootstrap_termination", "rounds_per_update", "loss_weight", "masked_minibatches"),
    *("bc_coef", "bc_dataset", "start_sampling"),
)
"""Settings of PPO that policies with Stable-Baselines3's own networks cannot use."""
_SB3_PPO = inspect.signature(SB3PPO.__init__).parameters.keys() - {"batch_size", "n_epochs"}
"""Arguments with Stable-Baselines3's meaning, schedules and limits."""


def constructor_settings(config: type[OnPolicyConfig], local: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor, of its `locals()` at its first line, but for `_init_setup_model`.

    Raises `UnknownName` or `BadValue` for settings of our own that `config` does not allow.
    """
    settings = {name: value for name, value in local.items() if name not in ("self", "__class__", "_init_setup_model")}
    own = {name: kind for name, kind in annotations_of(config).items() if name not in _SB3_PPO}
    check_fields(own, {name: settings[name] for name in own}, config.__name__.removesuffix("Config"))
    config(**{name: settings[name] for name in annotations_of(config)})
    return settings


def policy_class_of(policy: object, aliases: Mapping[str, type[BasePolicy]]) -> type[BasePolicy]:
    """Return the class of a policy that is given as a class or one of the `aliases`; raises `BadValue` for others."""
    if isinstance(policy, type):
        return policy
    if isinstance(policy, str) and policy in aliases:
        return aliases[policy]
    got = shown(policy) if isinstance(policy, str) else f"a {type(policy).__name__}"
    raise BadValue(
        f"policy must be {', '.join(aliases)} or a class, got {got}. Weights are chosen by "
        "policy_kwargs={'backbone': FOLDER}, which save_pretrained writes"
    )


def check_plain_settings(settings: Mapping[str, Any]) -> None:
    """Raise `BadValue` for one of the `CHUNK_SETTINGS` that is not at its default."""
    defaults = defaults_of(PPOConfig)
    for name in CHUNK_SETTINGS:
        if settings[name] != defaults[name]:
            raise BadValue(
                f"{name} is for policies with `act` and `evaluate`, such as 'VLAPolicy'; leave it at "
                f"{shown(defaults[name])}"
            )


def saved_attributes(path: str | Path | BufferedIOBase, custom_objects: dict[str, Any] | None) -> dict[str, Any]:
    """Attributes of the model in a zip of `save`, whose weights are not read; raises `BadValue` for another file."""
    opened = nullcontext(path) if isinstance(path, BufferedIOBase) else open_path(path, "r", suffix="zip")
    try:
        with opened as file, ZipFile(file) as archive:
            text = archive.read("data").decode()
    except (BadZipFile, KeyError) as error:
        raise BadValue(f"'{path}' is no model that save wrote: {error}") from error
    saved: dict[str, Any] = json_to_data(text, custom_objects)
    return saved
