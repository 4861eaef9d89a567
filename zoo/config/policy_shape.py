"""The network of a run: counted without its weights, and compared with settings that need more than it has."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vla_gym.errors import BadValue
from vla_gym.reading import user_path
from vla_policies.conventions import Conventions
from vla_policies.registry import FAMILIES, family_class
from zoo.config.algorithm_configs import ADAPTER_LACKING, STEP_VALUES_LACKING, PPOConfig
from zoo.config.batch_plan import benchmark_of, observation_layout
from zoo.config.run_config import RunConfig

if TYPE_CHECKING:  # brings torch
    from vla_policies.footprint import Footprint


PUBLISHED_ADAPTER: Mapping[str, Any] = {"rank": 32}
"""Of the adapters that recipes start from, before they are here: RLinf's lora_rank."""


def policy_footprint(config: RunConfig) -> Footprint | None:
    """Return the run's policy without memory; None where neither the family nor a folder here says what it is."""
    family, options = config.family, dict(config.backbone_kwargs)
    if user_path(config.policy).is_dir() and config.policy not in FAMILIES:
        found = _of_folder(config, options)
        if found is None:
            return None
        family, options = found
    elif config.policy_kwargs.get("base") is not None:
        options.setdefault("lora", PUBLISHED_ADAPTER)
    if family not in FAMILIES:
        return None
    benchmark = benchmark_of(config)
    layout = observation_layout(config, benchmark)
    conventions = Conventions(
        cameras=layout.cameras,
        image_size=layout.image_size,
        state_dim=layout.state_dim,
        chunk=config.chunk,
        action_dim=benchmark.action_dim,
    )
    return _footprint(family, conventions, json.dumps(options, sort_keys=True))


@functools.lru_cache(maxsize=32)
def _footprint(family: str, conventions: Conventions, options: str) -> Footprint:
    from vla_policies.footprint import Footprint

    return Footprint(family, conventions, json.loads(options))


def trains_in_16_bits(config: RunConfig) -> bool:
    """Whether weights that the run trains are smaller than float32; False where its policy is not known here."""
    counted = policy_footprint(config)
    return counted is not None and counted.trained < 4 * counted.num_trained


def _of_folder(config: RunConfig, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    from vla_policies.checkpoint_io.hub import OWN_BASE, local_folder
    from vla_policies.modules.lora_config import read_adapter_config
    from vla_policies.resolver import adapter_folder, resolve_policy

    kwargs, folder = config.policy_kwargs, user_path(config.policy)
    family, base = kwargs.get("family"), kwargs.get("base")
    try:
        place, adapted = adapter_folder(folder), dict(options)
        if place is not None:
            values = read_adapter_config(place)
            targets = values.get("target_modules") or ()
            adapted["lora"] = {"rank": values["r"], "alpha": values["lora_alpha"], "targets": targets}
            model = base or str(values["base_model_name_or_path"])
            if model != OWN_BASE and local_folder(model, None if base else values.get("revision")) is None:
                return None if family is None else (family, adapted)
        ref = resolve_policy(config.policy, {**kwargs, "verify": False, "backbone_kwargs": adapted})
        return ref.family, dict(ref.options)
    except BadValue:
        return None  # training says what is wrong with it


def check_quantization(config: RunConfig, *, sharded: bool) -> None:
    """Raise `BadValue` for a quantised policy that cannot be trained, before anything is read or started."""
    options = config.backbone_kwargs
    scheme = options.get("quantization")
    if scheme is None:
        return
    family = config.family
    if family in FAMILIES and not family_class(family).takes_quantization:
        able = [name for name in FAMILIES if family_class(name).takes_quantization]
        raise BadValue(f"quantization: {scheme} is not for family '{family}', only for {', '.join(able)}: leave it out")
    if sharded:
        raise BadValue(
            f"quantization: {scheme} keeps the frozen weights whole on every rank; FSDP2 shards weights that train. "
            "Leave one out: several ranks train adapters over quantised weights by DDP"
        )
    if user_path(config.policy).is_dir() or "lora" in options or config.policy_kwargs.get("base") is not None:
        return  # an adapter, or a folder, which may hold one: opening it tells
    raise BadValue(
        f"quantization: {scheme} is for frozen weights, and here all of them train; add an adapter: "
        f"-params 'policy_kwargs:{{backbone_kwargs: {{quantization: {scheme}, lora: {{rank: 32}}}}}}'"
    )


def check_network(config: RunConfig) -> None:
    """Raise `BadValue` for settings of the algorithm that the network of a family, as it is built here, cannot meet.

    What a folder or a Hub id holds is known when it is opened.
    """
    settings, kwargs = config.algorithm, config.policy_kwargs
    options = kwargs.get("backbone_kwargs") or {}
    if config.policy not in FAMILIES:
        return
    if settings.kl_coef and settings.kl_reference == "adapter_off" and not (options.get("lora") or kwargs.get("base")):
        raise BadValue(ADAPTER_LACKING)
    steps = isinstance(settings, PPOConfig) and settings.value_level == "action" and config.chunk > 1
    if steps and options.get("value_outputs") != config.chunk:
        raise BadValue(f"{STEP_VALUES_LACKING} (chunk {config.chunk})")
