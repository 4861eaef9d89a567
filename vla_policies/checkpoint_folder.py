"""From a policy's name (a family, a checkpoint folder, a Hub id) to its checkpoint folder, and what that holds.

No weights are read here; `vla_policies.loading` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from vla_gym.errors import BadValue, VLAZooError, unknown_name
from vla_gym.reading import read_json_object, user_path
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Header
from vla_policies.checkpoint_io.folder import (
    ADAPTER_CONFIG,
    ADAPTER_SETTINGS,
    CONFIG_FILE,
    OWN_KEY,
    has_weights,
    read_config,
)
from vla_policies.checkpoint_io.hub import CHECKPOINTS, OWN_BASE, POLICY_FILES, HubId, fetch, parse_hub_id
from vla_policies.checkpoint_io.json_records import from_json
from vla_policies.conventions import Conventions
from vla_policies.model_folder import Maker, ModelFolder, Request
from vla_policies.modules.lora_config import read_adapter_config
from vla_policies.recognition import names_of, published_family
from vla_policies.registry import FAMILIES, NEEDS_NO_CONFIG, family_class

FORMAT_VERSION = 1
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
    """A LoRA adapter that lies without its model, or beside it."""

    folder: Path
    """Place of its files: the checkpoint's folder, or `lora_adapter/` in it."""
    base_name: str
    """Folder or Hub id of the model it belongs to."""
    revision: str | None
    """Commit of the Hub id that it was trained on, where that is known."""


@dataclass(frozen=True)
class Contents:
    """A checkpoint folder opened, its model found, no weights read."""

    folder: Path
    """The checkpoint."""
    adapter: Adapter | None
    """The adapter that it holds alone; None = it holds a model."""
    model: ModelFolder
    """The model: of the checkpoint itself, or what its adapter belongs to."""

    @property
    def own_layout(self) -> bool:
        """Whether the model is in this project's layout."""
        return "format_version" in self.model.config or "family" in self.model.config


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
    maker: Maker | None = None
    """Whose program it was made with, where that says how it is played."""
    stated: frozenset[str] = frozenset()
    """The `backbone_kwargs` whose values its own files say."""


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
    request = with_named_family(request, name)
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


def with_named_family(request: Request, name: str) -> Request:
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


# Contents ---------------------------------------------------------------------------------------------


def read_header(folder: Path, request: Request | None = None) -> Header:
    """Read and check the folder's `config.json`, of this project's layout or a published one; no weights are read."""
    request = request or Request()
    with damage_reported(folder):
        return header_of(read_contents(folder, request.base), request)


def header_of(contents: Contents, request: Request) -> Header:
    """The header of a checkpoint that was opened; see `read_header`."""
    if contents.adapter is None and contents.own_layout:
        return _own_header(contents.folder, contents.model.config, request)
    return published_family(contents.model, request.family).read_official(contents.model, request)


def identify(folder: Path, request: Request) -> Identity:
    """Which family reads the folder, of which data sets it has statistics; the request chooses family and base."""
    with damage_reported(folder):
        contents = read_contents(folder, request.base)
        model = contents.model
        if contents.own_layout:
            return Identity(family_class(str(model.config.get("family"))).family, published=False)
        family = published_family(model, request.family)
        return Identity(
            family.family,
            published=OWN_KEY not in model.config and not (folder / ADAPTER_SETTINGS).is_file(),
            data_sets=frozenset(family.data_sets(model)),
            regresses=family.trained_options(model).get("head") == "l1",
            maker=family.maker(model),
            stated=frozenset(family.stated_options(model)),
        )


def as_trained(folder: Path, request: Request) -> Request:
    """`request` for a policy that is only to act: what it leaves open is as the makers of a published folder had it.

    A checkpoint of this project says itself how it was trained.
    """
    with damage_reported(folder):
        contents = read_contents(folder, request.base)
        if contents.adapter is None and contents.own_layout:
            return request
        trained = published_family(contents.model, request.family).trained_options(contents.model)
        return replace(request, options={**trained, **request.options})


@contextmanager
def damage_reported(folder: Path) -> Iterator[None]:
    """Context manager that names the folder where a damaged file raises what no check has named, or where another
    folder takes its place meanwhile."""
    opened = _number_of(folder)
    try:
        yield
    except (VLAZooError, *_DAMAGE) as error:
        _check_in_place(folder, opened)
        if isinstance(error, VLAZooError):
            raise
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise
        cause = shorten(f"{type(error).__name__}: {error}", 200)
        raise BadValue(f"'{folder}' cannot be opened: a file holds what does not belong there ({cause})") from error
    _check_in_place(folder, opened)


def replaced(folder: Path) -> BadValue:
    """Return the error for a folder that was another one when its first file was read, as a run's `best/` may be."""
    return BadValue(f"'{folder}' was replaced or removed while it was opened, as by a run that trains; try again")


def _check_in_place(folder: Path, opened: int | None) -> None:
    """Raise `BadValue` unless `folder` still has the number that it had when it was opened."""
    if _number_of(folder) != opened:
        raise replaced(folder)


def _number_of(folder: Path) -> int | None:
    """Number of a folder in its file system, which another in its place has not."""
    try:
        return folder.stat().st_ino
    except OSError:
        return None


def read_contents(folder: Path, base_name: str | None = None) -> Contents:
    """Open a checkpoint folder; `base_name` takes the place of the model that its adapter names."""
    place = adapter_folder(folder)
    if place is None:
        return Contents(folder, None, ModelFolder(folder, _config_of(folder), names=names_of(folder, folder)))
    values = read_adapter_config(place)
    name = str(values["base_model_name_or_path"]) if base_name is None else base_name
    revision = None if base_name is not None or Path(name).is_dir() else values.get("revision")
    base = _find_base(folder, name, revision)
    config = read_config(base)
    if (folder / ADAPTER_SETTINGS).is_file():
        config |= read_config(folder, ADAPTER_SETTINGS)
    beside = tuple(path for path in dict.fromkeys((place, folder)) if path != base)
    return Contents(folder, Adapter(place, name, revision), ModelFolder(base, config, beside, names_of(folder, base)))


def _config_of(folder: Path) -> Mapping[str, Any]:
    """`config.json`, or what the weights imply where fine-tunes are published without one."""
    if not (folder / CONFIG_FILE).is_file():
        for family in NEEDS_NO_CONFIG:
            if (implied := family_class(family).implied_config(folder)) is not None:
                return implied
    return read_config(folder)


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
    if adapter_folder(base) is not None:
        raise BadValue(
            f"the adapter in '{folder}' belongs to '{name}', which is an adapter itself: merge that first "
            f"(merge_adapter and save_pretrained of its policy), then {instead}"
        )
    return base
