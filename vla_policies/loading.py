"""From a checkpoint folder to a backbone with its weights, and back to a folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from vla_gym.errors import BadValue
from vla_gym.reading import read_json_object, user_path
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Backbone, Header
from vla_policies.checkpoint_folder import (
    FORMAT_VERSION,
    Contents,
    adapter_folder,
    damage_reported,
    find_checkpoint,
    header_of,
    read_contents,
    with_named_family,
)
from vla_policies.checkpoint_io.certificate import (
    CERTIFICATE_FILE,
    Certificate,
    certified,
    check_base,
    check_certificate,
    fingerprint,
)
from vla_policies.checkpoint_io.folder import ADAPTER_SETTINGS, CONFIG_FILE, OWN_KEY
from vla_policies.checkpoint_io.hub import OWN_BASE
from vla_policies.checkpoint_io.json_records import as_annotated, to_json
from vla_policies.conventions import Conventions, check_compatible, check_spaces, conventions_of
from vla_policies.model_folder import Request
from vla_policies.registry import FAMILIES, family_class

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pretrained:
    """A backbone with its weights."""

    backbone: Backbone
    """Network with its weights and conventions."""
    sampling: Sampling
    """Token sampling at the time of saving."""


def open_backbone(
    name: str,
    request: Request,
    revision: str | None,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
) -> Pretrained:
    """The backbone for an environment's spaces; a checkpoint that does not fit them raises."""
    folder = find_checkpoint(name, request.options, revision)
    wanted = conventions_of(observation_space, action_space, request.action_spec)
    if folder is None:
        return Pretrained(fresh_backbone(name, wanted, request.options), Sampling())
    loaded = load_checkpoint(folder, replace(with_named_family(request, name), wanted=wanted))
    check_spaces(loaded.backbone.conventions, observation_space, action_space)
    if request.action_spec is not None:
        check_compatible(request.action_spec, loaded.backbone.conventions.action_spec)
    set_source(loaded.backbone, name, folder)
    return loaded


def load_checkpoint(folder: Path, request: Request | None = None) -> Pretrained:
    """Read a checkpoint folder; anything missing, left over, unknown or not as certified raises."""
    request = request or Request()
    with damage_reported(folder):
        if request.verify:
            verify_checkpoint(folder, request.base)
        contents = read_contents(folder, request.base)
        header, adapter = header_of(contents, request), contents.adapter
        backbone = _unset_backbone(header, contents)
        backbone.load(contents.model.folder, contents.model.beside)
        if adapter is None:
            backbone.source, backbone.source_folder = str(folder.resolve()), folder.resolve()
        else:
            if adapter.base_name != OWN_BASE:  # which goes with the adapter wherever that is saved
                backbone.source, backbone.source_revision = adapter.base_name, adapter.revision
                backbone.source_folder = contents.model.folder.resolve()
            backbone.load_adapter(adapter.folder)
    return Pretrained(backbone, header.sampling)


def verify_checkpoint(folder: Path, base: str | None = None, *, whole: bool = False) -> Certificate | None:
    """Compare a folder with its certificate, and the model of its adapter (or `base`, instead) with what that names.

    Returns the certificate; raises `BadValue` for what differs. A folder of this project's layout that has none, of
    version 0.1, is noted. `whole`: see `check_certificate`.
    """
    certificate = check_certificate(folder, whole=whole)
    if certificate is None:
        config = read_json_object(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
        if {"format_version", OWN_KEY} & config.keys() or (folder / ADAPTER_SETTINGS).is_file():
            _logger.info(f"policy {folder} is of an older version: without {CERTIFICATE_FILE} it cannot be verified")
    elif certificate.base is not None and adapter_folder(folder) is not None:
        check_base(folder, certificate, read_contents(folder, base).model.folder)
    return certificate


def check_checkpoint(folder: Path, request: Request) -> tuple[Header, Backbone]:
    """Raise as `load_checkpoint` would for weights that do not fit, without reading or making any.

    The network is built on the meta device, and the files' headers say the tensors' names and shapes. Returned are the
    header and that network, in the types and with the adapters in which it would be loaded.
    """
    with damage_reported(folder):
        contents = read_contents(folder, request.base)
        header = header_of(contents, request)
        with torch.device("meta"):
            backbone = _unset_backbone(header, contents)
            backbone.check_weights(contents.model.folder)
            backbone.as_loaded()
            if contents.adapter is not None:
                backbone.check_adapter(contents.adapter.folder)
    return header, backbone


def _unset_backbone(header: Header, contents: Contents) -> Backbone:
    """The network that a header describes, weights unset."""
    where = f"model of {contents.model.folder / CONFIG_FILE}"
    return family_class(header.family).from_config(header.conventions, header.model, where)


def set_source(backbone: Backbone, name: str, folder: Path) -> None:
    """After `load_checkpoint(folder)`: set the source to a Hub id and commit instead of the local copy's folder."""
    if backbone.source == str(folder.resolve()) and not user_path(name).is_dir():
        backbone.source = backbone.published if name in FAMILIES else name.partition("@")[0]
        backbone.source_revision = folder.name


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
    if backbone.has_adapter and backbone.adapter_options is None:
        raise BadValue(
            "Stable-Baselines3's save knows adapters of one rank and alpha alone, and this one has rsLoRA or patterns "
            "of them; use save_trained, or merge_adapter before save"
        )
    conventions = backbone.conventions
    narrowing = {"image_size": conventions.image_size, "use_state": conventions.state_dim > 0}
    return {**backbone.config_json(), "cameras": list(conventions.cameras), **narrowing}


def save_checkpoint(
    folder: Path, backbone: Backbone, sampling: Sampling, canary: tuple[float, ...] | None = None
) -> None:
    """Write the folder in the family's layout: `config.json` and `model.safetensors`, or the published one."""
    config = {
        "format_version": FORMAT_VERSION,
        "family": backbone.family,
        "conventions": backbone.conventions.to_json(),
        "sampling": to_json(sampling),
        "model": backbone.config_json(),
    }
    with certified(folder, canary=canary):
        backbone.save(folder, config)


def save_adapter(
    folder: Path,
    backbone: Backbone,
    sampling: Sampling,
    base: str | None,
    canary: tuple[float, ...] | None = None,
) -> None:
    """Write the adapter alone, naming the model it belongs to."""
    name = base or backbone.source
    if name is None:
        raise BadValue("fresh weights have no name to put on an adapter; save_pretrained writes them whole")
    # Fresh weights that were given a name are not here to tell from others.
    source = None if backbone.source_folder is None else fingerprint(backbone.source_folder)
    with certified(folder, source, canary):
        backbone.save_adapter(folder, {"sampling": to_json(sampling)}, name)
