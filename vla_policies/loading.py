"""From a checkpoint folder to a backbone with its weights, and back to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from vla_gym.errors import BadValue
from vla_gym.reading import user_path
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Backbone, Header
from vla_policies.checkpoint_io.folder import CONFIG_FILE
from vla_policies.checkpoint_io.hub import OWN_BASE
from vla_policies.checkpoint_io.json_records import as_annotated, to_json
from vla_policies.checkpoint_io.manifest import model_sha256, writing_manifest
from vla_policies.conventions import Conventions, conventions_of
from vla_policies.registry import FAMILIES, family_class
from vla_policies.resolver import FORMAT_VERSION, PolicyRef


def build_backbone(
    ref: PolicyRef, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> tuple[Backbone, Sampling]:
    """Return the backbone for an environment's spaces, and token sampling at the time of saving.

    A checkpoint that does not fit the spaces raises.
    """
    wanted = conventions_of(observation_space, action_space, ref.request.action_spec)
    if ref.fresh:
        return fresh_backbone(ref.family, wanted, ref.request.options), Sampling()
    return load_checkpoint(ref.fetched().fitted(wanted, ref.request.suite))


def load_checkpoint(ref: PolicyRef) -> tuple[Backbone, Sampling]:
    """Return the backbone of a checkpoint folder with its weights, and token sampling at the time of saving.

    Anything missing, left over, unknown or not as the manifest says raises.
    """
    ref.verify()
    header, adapter = ref.header, ref.adapter
    backbone = _opened(ref, header)
    assert ref.folder is not None
    assert ref.model is not None
    if adapter is None:
        backbone.source_folder = ref.folder.resolve()
        backbone.source = str(backbone.source_folder)
        if not user_path(ref.name).is_dir():  # a Hub id, and its commit
            backbone.source = backbone.published if ref.name in FAMILIES else ref.name.partition("@")[0]
            backbone.source_revision = ref.folder.name
    elif adapter.base_name != OWN_BASE:  # which goes with the adapter wherever that is saved
        backbone.source, backbone.source_revision = adapter.base_name, adapter.revision
        backbone.source_folder = ref.model.folder.resolve()
    return backbone, header.sampling


def check_checkpoint(ref: PolicyRef) -> Backbone:
    """Raise as `load_checkpoint` would for weights that do not fit, without reading or making any.

    The network is built on the meta device, and the files' headers say the tensors' names and shapes. Returned is that
    network, in the types and with the adapters in which it would be loaded.
    """
    header = ref.header
    with torch.device("meta"):
        return _opened(ref, header)


def _opened(ref: PolicyRef, header: Header) -> Backbone:
    with ref.opened() as (_, model):
        where = f"model of {model.folder / CONFIG_FILE}"
        backbone = family_class(header.family).from_config(header.conventions, header.model, where)
        backbone.load(model.folder, model.beside)
        if ref.adapter is not None:
            backbone.load_adapter(ref.adapter.folder)
    return backbone


def fresh_backbone(family: str, conventions: Conventions, options: Mapping[str, Any]) -> Backbone:
    """New weights of `family` for an environment's conventions.

    Any family understands `cameras`, `image_size` and `use_state`, which narrow what is read of the
    environment; the other options are the family's own.
    """
    rest = dict(options)

    def take(name: str, kind: Any, otherwise: Any) -> Any:
        return as_annotated(kind, rest.pop(name, otherwise), f"{name} of backbone_kwargs")

    cameras = take("cameras", tuple[str, ...], conventions.cameras)
    if missing := [key for key in cameras if key not in conventions.cameras]:
        raise BadValue(f"cameras {missing} are not in the observation; it has {list(conventions.cameras)}")
    narrowed = replace(
        conventions,
        cameras=cameras,
        image_size=take("image_size", int, conventions.image_size),
        state_dim=conventions.state_dim if take("use_state", bool, True) else 0,
    )
    return family_class(family).fresh(narrowed, rest)


def fresh_options(backbone: Backbone) -> dict[str, Any]:
    """Options with which `fresh_backbone` builds a network of the same shape; raises where none do."""
    if backbone.has_adapter and backbone.lora is None:
        raise BadValue(
            "Stable-Baselines3's save knows adapters of one rank and alpha alone, and this one has rsLoRA or patterns "
            "of them; use save_trained, or merge_adapter before save"
        )
    conventions = backbone.conventions
    narrowing = {"image_size": conventions.image_size, "use_state": conventions.state_dim > 0}
    return {**backbone.config_json(), "cameras": list(conventions.cameras), **narrowing}


def save_checkpoint(folder: Path, backbone: Backbone, sampling: Sampling) -> None:
    """Write the folder in the family's layout: `config.json` and `model.safetensors`, or the published one."""
    config = {
        "format_version": FORMAT_VERSION,
        "family": backbone.family,
        "conventions": to_json(backbone.conventions),
        "sampling": to_json(sampling),
        "model": backbone.config_json(),
    }
    with writing_manifest(folder):
        backbone.save(folder, config)


def save_adapter(folder: Path, backbone: Backbone, sampling: Sampling, base: str | None) -> None:
    """Write the adapter alone, naming the model it belongs to."""
    name = base or backbone.source
    if name is None:
        raise BadValue("fresh weights have no name to put on an adapter; save_pretrained writes them whole")
    # Fresh weights that were given a name are not here to tell from others.
    source = None if backbone.source_folder is None else model_sha256(backbone.source_folder)
    with writing_manifest(folder, source):
        backbone.save_adapter(folder, {"sampling": to_json(sampling)}, name)
