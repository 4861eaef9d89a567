"""From a policy's name (a family, a checkpoint folder, a Hub id) to its backbone, and back to a folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from gymnasium import spaces
from huggingface_hub.errors import StrictDataclassError

from vla_gym.errors import BadValue, VLAZooError, unknown_name
from vla_gym.reading import read_json_object, user_path
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Backbone, Header, Request
from vla_policies.checkpoint_io.certificate import (
    CERTIFICATE_FILE,
    Certificate,
    certified,
    check_base,
    check_certificate,
    fingerprint,
)
from vla_policies.checkpoint_io.hub import CHECKPOINTS, OWN_BASE, POLICY_FILES, HubId, fetch, parse_hub_id
from vla_policies.checkpoint_io.json_records import as_annotated, from_json, to_json
from vla_policies.checkpoint_io.weights import (
    ADAPTER_CONFIG,
    ADAPTER_SETTINGS,
    CONFIG_FILE,
    OWN_KEY,
    has_weights,
    read_config,
)
from vla_policies.conventions import Conventions, check_compatible, check_spaces, conventions_of
from vla_policies.modules.lora_config import read_adapter_config
from vla_policies.recognition import names_of, published_family
from vla_policies.registry import FAMILIES, NEEDS_NO_CONFIG, family_class

FORMAT_VERSION = 1
_logger = logging.getLogger(__name__)
LORA_FOLDER = "lora_adapter"
_CONFIG_KEYS = ("format_version", "family", "conventions", "sampling", "model")
_DAMAGE = (
    *(LookupError, TypeError, AttributeError, AssertionError, ValueError, ArithmeticError, RuntimeError),
    StrictDataclassError,
)
"""Exceptions of reading and building where a file's content does not fit its layout: `RuntimeError` is torch's for
sizes that do not go together, the last transformers' own."""


@dataclass(frozen=True)
class Adapter:
    """A folder that holds a LoRA adapter alone."""

    folder: Path
    """Place of the adapter's own files: the folder, or `lora_adapter/` in it."""
    base_name: str
    """Folder or Hub id of the model it belongs to."""
    revision: str | None
    """Commit of the Hub id that it was trained on, where that is known."""
    base: Path
    """Folder of that model."""
    config: Mapping[str, Any]
    """The model's `config.json` with the adapter's own settings over it."""
    beside: tuple[Path, ...]
    """Where files of its own lie, nearest first; they come before the model's."""


@dataclass(frozen=True)
class Identity:
    """What a checkpoint folder is, before anything is chosen in it."""

    family: str
    """Name in `registry.FAMILIES`."""
    published: bool
    """Whether its makers wrote it, so that how it is read is the user's to say; False = this project."""
    data_sets: frozenset[str] = frozenset()
    """Those whose action statistics it has."""
    regresses: bool = False
    """Whether it was trained to give actions by regression."""


@dataclass(frozen=True)
class Pretrained:
    """A backbone with its weights."""

    backbone: Backbone
    """Network with its weights and conventions."""
    sampling: Sampling
    """Token sampling at the time of saving."""


@dataclass(frozen=True)
class ResolvedPolicy:
    """A policy's name resolved, no weights read."""

    folder: Path | None
    """Its checkpoint; None = fresh weights."""
    conventions: Conventions
    """Those of the checkpoint, or the family's defaults where weights are fresh."""
    request: Request
    """The user's request, completed."""


# Names ------------------------------------------------------------------------------------------------


def resolve_policy(
    name: str,
    request: Request,
    revision: str | None = None,
    dtype: torch.dtype | str | None = None,
    *,
    to_act: bool = False,
) -> ResolvedPolicy:
    """Find the checkpoint, downloading a Hub id, and read its header; `dtype` becomes the family's option.

    `to_act`: see `as_trained`.
    """
    folder = find_checkpoint(name, request.options, revision)
    if folder is None:
        _check_fresh(name, request)
        return ResolvedPolicy(None, family_class(name).default_conventions, replace(request, family=None))
    request = _with_named_family(request, name)
    if to_act:
        request = as_trained(folder, request)
    header = read_header(folder, request)
    if dtype is not None:
        dtype_options = family_class(header.family).dtype_options(_dtype_name(dtype))
        request = replace(request, options={**request.options, **dtype_options})
    return ResolvedPolicy(folder, header.conventions, request)


def find_checkpoint(name: str, options: Mapping[str, Any] | None = None, revision: str | None = None) -> Path | None:
    """The checkpoint folder that `name` means, downloading a Hub id; None when fresh weights are meant.

    A family's bare name means its published checkpoint, or for fresh weights where it has none or
    where `options` (the user's `backbone_kwargs`) describe some. A name with one slash whose first part is
    no local folder is a Hub id, `org/model[@revision]`.
    """
    if name in FAMILIES:
        family = family_class(name)
        if family.published is None or family.wants_fresh(options or {}):
            if revision is not None:
                raise BadValue(f"revision '{revision}' is for Hub ids; '{name}' means fresh weights here")
            return None
        return fetch(HubId(family.published, revision), allow=POLICY_FILES, ignore=(CHECKPOINTS,))
    path = user_path(name)
    if path.is_dir():
        if revision is not None:
            raise BadValue(f"revision '{revision}' is for Hub ids; '{name}' is a folder")
        return path
    hub = parse_hub_id(name)
    if hub is not None:
        hub = HubId(hub.repo, revision or hub.revision)
        return fetch(hub, allow=POLICY_FILES, ignore=(CHECKPOINTS,))
    if "/" in name or path.exists():
        raise BadValue(f"policy '{name}' is no checkpoint folder; it must be a folder with {CONFIG_FILE} and weights")
    raise unknown_name("policy", name, FAMILIES)


def _with_named_family(request: Request, name: str) -> Request:
    """`request`, read by the family that `name` is the bare name of, unless the user chose one."""
    return replace(request, family=request.family or name) if name in FAMILIES else request


def _check_fresh(name: str, request: Request) -> None:
    if request.family is not None and family_class(request.family).family != name:
        raise BadValue(f"'{name}' is of family '{name}', got family='{request.family}'")
    if request.unnorm_key is not None:
        raise BadValue(f"fresh weights of '{name}' keep no action statistics; got unnorm_key='{request.unnorm_key}'")


def _dtype_name(dtype: torch.dtype | str) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in ("auto", "float32", "bfloat16"):
        raise BadValue(f"dtype must be auto, float32 or bfloat16, got '{name}'")
    return name


# Headers ----------------------------------------------------------------------------------------------


def read_header(folder: Path, request: Request | None = None) -> Header:
    """Read and check the folder's `config.json`, of this project's layout or a published one; no weights are read."""
    request = request or Request()
    with _damage_reported(folder):
        adapter = _read_adapter(folder, request.base)
        base, config, beside = _model(folder, adapter)
        if adapter is None and ("format_version" in config or "family" in config):
            return _own_header(folder, config, request)
        family = published_family(base, config, request.family, names_of(folder, base), beside)
        return family.read_official(base, config, request, beside)


def identify(folder: Path, request: Request) -> Identity:
    """Which family reads the folder, of which data sets it has statistics; the request chooses family and base."""
    with _damage_reported(folder):
        adapter = _read_adapter(folder, request.base)
        base, config, beside = _model(folder, adapter)
        if "format_version" in config or "family" in config:
            return Identity(family_class(str(config.get("family"))).family, published=False)
        family = published_family(base, config, request.family, names_of(folder, base), beside)
        own = OWN_KEY in config or (folder / ADAPTER_SETTINGS).is_file()
        return Identity(
            family.family,
            published=not own,
            data_sets=frozenset(family.data_sets(base, config, beside)),
            regresses=family.trained_options(base, config, beside).get("head") == "l1",
        )


def _config_of(folder: Path) -> Mapping[str, Any]:
    """`config.json`, or what the weights imply where fine-tunes are published without one."""
    if not (folder / CONFIG_FILE).is_file():
        for family in NEEDS_NO_CONFIG:
            if (implied := family_class(family).implied_config(folder)) is not None:
                return implied
    return read_config(folder)


@contextmanager
def _damage_reported(folder: Path) -> Iterator[None]:
    """Context manager that names the folder where a damaged file raises what no check has named."""
    try:
        yield
    except VLAZooError:
        raise
    except _DAMAGE as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise
        cause = shorten(f"{type(error).__name__}: {error}", 200)
        raise BadValue(f"'{folder}' cannot be opened: a file holds what does not belong there ({cause})") from error


def as_trained(folder: Path, request: Request) -> Request:
    """`request` for a policy that is only to act: what it leaves open is as the makers of a published folder had it.

    A checkpoint of this project says itself how it was trained.
    """
    with _damage_reported(folder):
        adapter = _read_adapter(folder, request.base)
        base, config, beside = _model(folder, adapter)
        if adapter is None and ("format_version" in config or "family" in config):
            return request
        family = published_family(base, config, request.family, names_of(folder, base), beside)
        return replace(request, options={**family.trained_options(base, config, beside), **request.options})


def _model(folder: Path, adapter: Adapter | None) -> tuple[Path, Mapping[str, Any], tuple[Path, ...]]:
    """(the model's folder, its settings, the folders of the adapter on it)."""
    return (folder, _config_of(folder), ()) if adapter is None else (adapter.base, adapter.config, adapter.beside)


def _own_header(folder: Path, config: Mapping[str, Any], request: Request) -> Header:
    where = str(folder / CONFIG_FILE)
    for key in config:
        if key not in _CONFIG_KEYS:
            raise unknown_name(f"setting in {where}", key, _CONFIG_KEYS)
    if lacking := [key for key in _CONFIG_KEYS if key not in config]:
        raise BadValue(f"{where} lacks {', '.join(lacking)}; it must have: {', '.join(_CONFIG_KEYS)}")
    if config["format_version"] != FORMAT_VERSION:
        raise BadValue(f"{where} has format_version {config['format_version']}, this version reads {FORMAT_VERSION}")
    family = family_class(config["family"]).family
    if request.family is not None and family_class(request.family).family != family:
        raise BadValue(f"'{folder}' is of family '{family}', got family='{request.family}'")
    if request.unnorm_key is not None:
        raise BadValue(
            f"family '{family}' keeps no action statistics; unnorm_key must be None, got '{request.unnorm_key}'"
        )
    return Header(
        family=family,
        conventions=from_json(Conventions, config["conventions"], f"conventions of {where}"),
        sampling=from_json(Sampling, config["sampling"], f"sampling of {where}"),
        model=family_class(family).with_options(config["model"], request.options, str(folder)),
    )


def adapter_folder(folder: Path) -> Path | None:
    """Where the files of a LoRA adapter are, if the folder holds one and no model that it is merged into;
    openvla-oft's training writes them to `lora_adapter/`, beside merged weights or instead of them."""
    if has_weights(folder):
        return folder if names_own_base(folder) else None
    return next((place for place in (folder, folder / LORA_FOLDER) if (place / ADAPTER_CONFIG).is_file()), None)


def names_own_base(folder: Path) -> bool:
    """Whether the folder holds an adapter and the model that it belongs to, apart."""
    path = folder / ADAPTER_CONFIG
    return path.is_file() and read_json_object(path).get("base_model_name_or_path") == OWN_BASE


def _read_adapter(folder: Path, base_name: str | None = None) -> Adapter | None:
    place = adapter_folder(folder)
    if place is None:
        return None
    values = read_adapter_config(place)
    name = str(values["base_model_name_or_path"]) if base_name is None else base_name
    revision = None if base_name is not None or Path(name).is_dir() else values.get("revision")
    base = _find_base(folder, name, revision)
    config = read_config(base)
    if (folder / ADAPTER_SETTINGS).is_file():
        config |= read_config(folder, ADAPTER_SETTINGS)
    beside = tuple(path for path in dict.fromkeys((place, folder)) if path != base)
    return Adapter(place, name, revision, base, config, beside)


def _find_base(folder: Path, name: str, revision: str | None) -> Path:
    """The model that the adapter in `folder` names, or that the user names for it."""
    if name == OWN_BASE:
        return folder
    instead = "give the model's folder or Hub id as policy_kwargs base"
    if name not in FAMILIES and not user_path(name).is_dir() and parse_hub_id(name) is None:
        raise BadValue(f"the adapter in '{folder}' belongs to the model '{name}', which is not here; {instead}")
    base = find_checkpoint(name, revision=revision)
    if base is None:
        raise BadValue(f"the adapter in '{folder}' names the family '{name}' as its base; {instead}")
    return base


# Backbones --------------------------------------------------------------------------------------------


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
    loaded = load_checkpoint(folder, replace(_with_named_family(request, name), wanted=wanted))
    check_spaces(loaded.backbone.conventions, observation_space, action_space)
    if request.action_spec is not None:
        check_compatible(request.action_spec, loaded.backbone.conventions.action_spec)
    set_source(loaded.backbone, name, folder)
    return loaded


def load_checkpoint(folder: Path, request: Request | None = None) -> Pretrained:
    """Read a checkpoint folder; anything missing, left over, unknown or not as certified raises."""
    request = request or Request()
    with _damage_reported(folder):
        if request.verify:
            verify_checkpoint(folder, request.base)
        header = read_header(folder, request)
        adapter = _read_adapter(folder, request.base)
        base, beside = (folder, ()) if adapter is None else (adapter.base, adapter.beside)
        backbone = family_class(header.family).from_config(header.conventions, header.model, _model_of(base))
        backbone.load(base, beside)
        if adapter is None:
            backbone.source, backbone.source_folder = str(folder.resolve()), folder.resolve()
        else:
            if adapter.base_name != OWN_BASE:  # which goes with the adapter wherever that is saved
                backbone.source, backbone.source_revision = adapter.base_name, adapter.revision
                backbone.source_folder = base.resolve()
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
    elif certificate.base is not None and (adapter := _read_adapter(folder, base)) is not None:
        check_base(folder, certificate, adapter.base)
    return certificate


def check_checkpoint(folder: Path, request: Request) -> tuple[Header, Backbone]:
    """Raise as `load_checkpoint` would for weights that do not fit, without reading or making any.

    The network is built on the meta device, and the files' headers say the tensors' names and shapes. Returned are the
    header and that network, in the types and with the adapters in which it would be loaded.
    """
    with _damage_reported(folder):
        header = read_header(folder, request)
        adapter = _read_adapter(folder, request.base)
        base = folder if adapter is None else adapter.base
        with torch.device("meta"):
            backbone = family_class(header.family).from_config(header.conventions, header.model, _model_of(base))
            backbone.check_weights(base)
            backbone.as_loaded()
            if adapter is not None:
                backbone.check_adapter(adapter.folder)
    return header, backbone


def _model_of(folder: Path) -> str:
    return f"model of {folder / CONFIG_FILE}"


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
