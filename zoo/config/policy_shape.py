"""Which network a run has, so that it can be counted without its weights."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vla_gym.errors import BadValue
from vla_gym.observation import ObservationLayout
from vla_gym.reading import user_path
from vla_gym.specs import Benchmark
from vla_policies.conventions import Conventions
from vla_policies.registry import FAMILIES, family_class
from zoo.config.algorithm_configs import ADAPTER_LACKING, STEP_VALUES_LACKING, PPOConfig
from zoo.config.run_config import RunConfig

if TYPE_CHECKING:  # brings torch
    from vla_policies.footprint import Footprint


PUBLISHED_ADAPTER: Mapping[str, Any] = {"rank": 32}
"""Of the adapters that recipes start from, before they are here: RLinf's lora_rank."""


@dataclass(frozen=True)
class PolicyShape:
    """What a network is built from."""

    family: str
    """Name in `registry.FAMILIES`."""
    conventions: Conventions
    """Of the run's observations and actions."""
    options: str
    """`backbone_kwargs` as JSON, which can be a key."""


def policy_shape(config: RunConfig, layout: ObservationLayout, benchmark: Benchmark) -> PolicyShape | None:
    """Return the shape of the run's policy; None where neither the family nor a folder here says it."""
    conventions = Conventions(
        cameras=layout.cameras,
        image_size=layout.image_size,
        state_dim=layout.state_dim,
        chunk=config.chunk,
        action_dim=benchmark.action_dim,
    )
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
    return PolicyShape(family, conventions, json.dumps(options, sort_keys=True))


def _of_folder(config: RunConfig, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    from vla_policies.checkpoint_folder import adapter_folder, read_header
    from vla_policies.checkpoint_io.hub import OWN_BASE, local_folder
    from vla_policies.model_folder import Request
    from vla_policies.modules.lora_config import read_adapter_config

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
        header = read_header(
            folder, Request(family=family, unnorm_key=kwargs.get("unnorm_key"), options=adapted, base=base)
        )
    except BadValue:
        return None  # training says what is wrong with it
    return header.family, dict(header.model)


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


@functools.lru_cache(maxsize=32)
def footprint(shape: PolicyShape) -> Footprint:
    """Return the network of a shape, without memory."""
    from vla_policies.footprint import Footprint

    return Footprint(shape.family, shape.conventions, json.loads(shape.options))
