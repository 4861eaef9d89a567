"""From a policy's name (a family, a checkpoint folder, a Hub id) to a record of what it names, without weights.

The folder is opened here, once: every file of settings is read at most once for a `PolicyRef`, whatever is asked of it,
and `vla_policies.loading` builds the policy from the record. torch is imported only for folders and options that a
family has to look at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from vla_gym.errors import BadValue, VLAZooError, shown, unknown_name
from vla_gym.reading import read_json_object, user_path
from vla_gym.specs import ActionSpec
from vla_policies.checkpoint_io.folder import (
    ADAPTER_CONFIG,
    ADAPTER_SETTINGS,
    CONFIG_FILE,
    HASH,
    OWN_KEY,
    has_weights,
    read_config,
    read_once,
    reading_once,
)
from vla_policies.checkpoint_io.hub import (
    CHECKPOINTS,
    OWN_BASE,
    POLICY_FILES,
    HubId,
    cached,
    fetch,
    local_folder,
    parse_hub_id,
)
from vla_policies.checkpoint_io.json_records import as_annotated, from_json
from vla_policies.checkpoint_io.manifest import Manifest, check_base, check_manifest, model_sha256, read_manifest
from vla_policies.conventions import Conventions, check_fits
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.modules.lora_config import read_adapter_config
from vla_policies.registry import FAMILIES, NEEDS_NO_CONFIG, PUBLISHED_LAYOUTS, family_class

if TYPE_CHECKING:  # they bring torch
    from vla_policies.backbone import Backbone, Header

FORMAT_VERSION = 1
LORA_FOLDER = "lora_adapter"
_MODEL = "model_sha256"
_UNVERIFIED = (
    ". Write or download it again; to open it as it is: policy_kwargs verify: false "
    "(-params 'policy_kwargs:{verify: false}')"
)
_DAMAGE = (
    *(LookupError, TypeError, AttributeError, AssertionError, ValueError, ArithmeticError, RuntimeError),
    StrictDataclassError,
)
"""Exceptions of reading and building where a file's content does not fit its layout: `RuntimeError` is torch's for
sizes that do not go together, the last transformers' own."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that lies without its model, or beside it."""

    folder: Path
    """Folder of its files: the checkpoint's, or `lora_adapter/` in it."""
    base_name: str
    """Folder or Hub id of the model it belongs to."""
    revision: str | None
    """Commit of the Hub id that it was trained on, where that is known."""


@dataclass(frozen=True, kw_only=True)
class PolicyRef:
    """A policy's name resolved: its files' content, and how it is read. No weights."""

    name: str
    """Family, folder or Hub id, as it was given."""
    family: str
    """Name in `registry.FAMILIES`."""
    request: Request
    """How it is read; see `reading`."""
    revision: str | None = None
    """Branch, tag or commit of a Hub id."""
    folder: Path | None = None
    """Checkpoint folder; None for fresh weights, and for a Hub id that was not to be fetched."""
    model: ModelFolder | None = None
    """Its model: the folder's own, or the one that its adapter belongs to. None where `folder` is."""
    adapter: Adapter | None = None
    """Adapter that the folder holds alone; None = it holds a model."""
    manifest: Manifest | None = None
    """Hashes of its files; None where the folder says none."""
    files: dict[tuple[str, Path], Any] = field(default_factory=dict, repr=False, compare=False)
    """Content of the files that were read."""
    notes: list[str] = field(default_factory=list, repr=False, compare=False)
    """Warnings about how it is read, for results."""

    @property
    def fresh(self) -> bool:
        """Whether it names a family's fresh weights."""
        return (
            self.folder is None and self.name == self.family and self.backbone_class.wants_fresh(self.request.options)
        )

    @property
    def own_layout(self) -> bool:
        """Whether the model is in this project's layout."""
        return self.model is not None and bool({"format_version", "family"} & self.model.config.keys())

    @property
    def published(self) -> bool:
        """Whether its makers wrote it, so that the user may say how it is read; False = this project wrote it."""
        if self.folder is None or self.model is None or self.own_layout:
            return False
        return OWN_KEY not in self.model.config and not (self.folder / ADAPTER_SETTINGS).is_file()

    @cached_property
    def facts(self) -> FolderFacts:
        """How its makers trained and play it, as far as its files tell; of this project's layout nothing."""
        if self.folder is None or self.own_layout:
            return FolderFacts()
        with self.opened() as (family, model):
            return family.facts(model)

    @cached_property
    def header(self) -> Header:
        """Conventions, sampling and settings of the folder's model, as `request` reads it."""
        request = self.request
        options = dict(request.options)
        if request.to_act and self.published:
            options = {**self.backbone_class.played_options, **self.facts.trained_options, **options}
        if request.dtype is not None:
            options |= self.backbone_class.dtype_options(str(request.dtype).removeprefix("torch."))
        request = replace(request, options=options)
        with self.opened() as (family, model):
            if self.own_layout and self.adapter is None:
                return _own_header(family, model, request)
            return family.read_official(model, request)

    @property
    def conventions(self) -> Conventions:
        """Observations and actions: the checkpoint's, or the family's defaults where weights are fresh."""
        return self.backbone_class.default_conventions if self.folder is None else self.header.conventions

    @property
    def options(self) -> Mapping[str, Any]:
        """The family's own settings: the checkpoint's, or the `backbone_kwargs` of fresh weights."""
        return self.request.options if self.folder is None else self.header.model

    @property
    def backbone_class(self) -> type[Backbone]:
        """Class of the family; importing it brings torch."""
        return family_class(self.family)

    def warn(self, text: str) -> None:
        """Log a warning about how it is read, and keep it in `notes`."""
        _log.warning(text)
        self.notes.append(text)

    def reading(self, **changes: Any) -> PolicyRef:
        """Return the record of the same files read by another request: `changes` are fields of `Request`."""
        return replace(self, request=replace(self.request, **changes))

    def read_by(self, settings: Mapping[str, Any], **changes: Any) -> PolicyRef:
        """As `reading`, by other keyword arguments of `VLAPolicy`; `family`, `base` and `revision` must be the same."""
        return self.reading(**_reading(settings), **changes)

    @property
    def hashes(self) -> dict[Path, str]:
        """SHA-256 of the files that were read."""
        return {path: content for (kind, path), content in self.files.items() if kind == HASH}

    def model_sha256(self, folder: Path) -> str:
        """Return `manifest.model_sha256` of one of its folders, taken once."""
        if (_MODEL, folder) not in self.files:
            self.files[_MODEL, folder] = model_sha256(folder, self.hashes)
        return str(self.files[_MODEL, folder])

    def fitted(self, env: Conventions, suite: str | None) -> PolicyRef:
        """Return the record of the same files read for an environment; raises `BadValue` where they do not fit it."""
        ref = self.reading(suite=suite, action_spec=env.action_spec, wanted=env)
        check_fits(ref.conventions, env, self.backbone_class.length_hint)
        return ref

    @contextmanager
    def opened(self) -> Iterator[tuple[type[Backbone], ModelFolder]]:
        """Context manager with the class and the model: no file is read twice, and damage is reported by its folder."""
        assert self.folder is not None, f"'{self.name}' has no folder here"
        assert self.model is not None
        with _damage_reported(self.folder), reading_once(self.files):
            yield self.backbone_class, self.model

    def fetched(self) -> PolicyRef:
        """Return the record with its folder, downloading a Hub id that was not to be fetched; itself where it has one,
        and for fresh weights."""
        if self.folder is not None or self.fresh:
            return self
        folder = find_checkpoint(self.name, self.request.options, self.revision)
        assert folder is not None
        return replace(open_folder(folder, self.request), name=self.name, revision=self.revision)

    def verify(self) -> None:
        """Raise `BadValue` where a file of the folder, or its adapter's base, is not what the manifest says."""
        if self.manifest is None or self.folder is None:
            return
        check_manifest(self.folder, self.manifest, known=self.hashes, instead=_UNVERIFIED)
        if self.adapter is not None and self.model is not None:
            check_base(self.folder, self.manifest, self.model.folder)


# Names ------------------------------------------------------------------------------------------------


def resolve_policy(
    name: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    suite: str | None = None,
    action_spec: ActionSpec | None = None,
    to_act: bool = False,
    offline: bool = False,
) -> PolicyRef:
    """Resolve a family name, a checkpoint folder or a Hub id, which is downloaded.

    A family's bare name means its published checkpoint, or fresh weights where it has none or where `backbone_kwargs`
    describe some. A name with one slash whose first part is no local folder is a Hub id, `org/model[@revision]`.

    :param settings: `VLAPolicy`'s keyword arguments, of which `family`, `unnorm_key`, `revision`, `base`, `verify`,
        `dtype` and `backbone_kwargs` say how the folder is read.
    :param suite: suite of the environment's tasks; chooses the statistics of that name where `unnorm_key` does not.
    :param action_spec: the environment's action convention.
    :param to_act: the policy is not to be trained: a published folder is read as its makers trained it.
    :param offline: fetch nothing. A family's published checkpoint becomes a record without folder, and so does a Hub id
        that is not here or whose base is not, of which `family` must say the family. `PolicyRef.fetched` opens them.
    :raises BadValue: for a folder that is damaged or lacks a file, and for settings that do not fit it.
    :raises UnknownName: for a name that means nothing.
    """
    name, given = str(name), settings or {}
    request = Request(
        family=given.get("family"),
        base=given.get("base"),
        suite=suite,
        action_spec=action_spec,
        to_act=to_act,
        **_reading(given),
    )
    revision = given.get("revision")
    if name in FAMILIES:
        if family_class(name).wants_fresh(request.options):
            other = None if request.family == name else request.family
            left = {"family": other, "unnorm_key": request.unnorm_key, "dtype": request.dtype, "revision": revision}
            for setting, value in left.items():
                if value is not None:
                    raise BadValue(f"policy '{name}' means fresh weights here, got {setting}='{value}'; leave it out")
            return PolicyRef(name=name, family=name, request=replace(request, family=None))
        request = replace(request, family=request.family or name)
        if offline:
            return PolicyRef(name=name, family=name, request=request, revision=revision)
    folder = find_checkpoint(name, request.options, revision, offline=offline)
    base = request.base if offline and folder is not None and adapter_folder(folder) is not None else None
    lacks_base = base is not None and parse_hub_id(base) is not None and local_folder(base) is None
    if folder is None or lacks_base:
        assert request.family is not None
        return PolicyRef(name=name, family=request.family, request=request, revision=revision)
    return replace(open_folder(folder, request), name=name, revision=revision)


def open_folder(folder: Path, request: Request | None = None) -> PolicyRef:
    """Open a checkpoint folder; its own files say the family, or `request` where several read it."""
    request, files = request or Request(), dict[tuple[str, Path], Any]()
    with _damage_reported(folder), reading_once(files):
        manifest = read_manifest(folder) if request.verify else None
        model, adapter = _open_model(folder, request.base)
        ref = PolicyRef(
            name=str(folder),
            family="",
            request=request,
            folder=folder,
            model=model,
            adapter=adapter,
            manifest=manifest,
            files=files,
        )
        if adapter is None and has_weights(folder) and (folder / ADAPTER_CONFIG).is_file():
            ref.warn(
                f"'{folder}' has whole weights and beside them an adapter, which is left out: they are read as merged. "
                "If they are not, move the adapter to a folder of its own and open that, with these weights as "
                "policy_kwargs base"
            )
        if ref.own_layout:
            family = model.config.get("family")
            if family not in FAMILIES:
                raise unknown_name(f"policy family (in '{folder / CONFIG_FILE}')", str(family), FAMILIES)
            return replace(ref, family=str(family))
        return replace(ref, family=published_family(model, request.family, ref.warn).family)


def find_checkpoint(
    name: str, options: Mapping[str, Any] | None = None, revision: str | None = None, *, offline: bool = False
) -> Path | None:
    """Return the checkpoint folder that `name` means, downloading a Hub id; None when fresh weights are meant, and
    where `offline` a Hub id is not here."""
    if name in FAMILIES:
        family = family_class(name)
        path, hub = None, None if family.wants_fresh(options or {}) else parse_hub_id(str(family.published))
    else:
        path = user_path(name)
        hub = None if path.is_dir() else parse_hub_id(name)
    if hub is not None:
        hub = HubId(hub.repo, revision or hub.revision)
        return cached(hub) if offline else fetch(hub, allow=POLICY_FILES, ignore=(CHECKPOINTS,))
    if path is not None and not path.is_dir():
        if "/" in name or path.exists():
            raise BadValue(
                f"policy '{name}' is no checkpoint folder; it must be a folder with {CONFIG_FILE} and weights"
            )
        raise unknown_name("policy", name, FAMILIES)
    if revision is not None:
        what = "means fresh weights here" if path is None else "is a folder"
        raise BadValue(f"revision '{revision}' is for Hub ids; '{name}' {what}")
    return path


def _reading(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Request` by which files that are open are read, from `VLAPolicy`'s keyword arguments."""
    return {
        "unnorm_key": settings.get("unnorm_key"),
        "dtype": settings.get("dtype"),
        "verify": as_annotated(bool, settings.get("verify", True), "verify of VLAPolicy"),
        "options": settings.get("backbone_kwargs") or {},
    }


# Folders ----------------------------------------------------------------------------------------------


@contextmanager
def _damage_reported(folder: Path) -> Iterator[None]:
    """Context manager that names the folder where a damaged file raises what no check has named."""
    try:
        yield
    except VLAZooError:
        raise
    except _DAMAGE as error:
        if type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error):
            raise
        cause = shorten(f"{type(error).__name__}: {error}", 200)
        raise BadValue(f"'{folder}' cannot be opened: a file holds what does not belong there ({cause})") from error


def _open_model(folder: Path, base_name: str | None) -> tuple[ModelFolder, Adapter | None]:
    place = adapter_folder(folder)
    if place is None:
        return ModelFolder(folder, _config_of(folder), names=names_of(folder)), None
    values = read_once(place, read_adapter_config)
    name = str(values["base_model_name_or_path"]) if base_name is None else base_name
    revision = None if base_name is not None or Path(name).is_dir() else values.get("revision")
    base = _find_base(folder, name, revision)
    config = read_config(base)
    if (folder / ADAPTER_SETTINGS).is_file():
        config = {**config, **read_config(folder, ADAPTER_SETTINGS)}
    beside = tuple(path for path in dict.fromkeys((place, folder)) if path != base)
    return ModelFolder(base, config, beside, names_of(folder, base)), Adapter(place, name, revision)


def _config_of(folder: Path) -> Mapping[str, Any]:
    """`config.json`, or what the weights imply where fine-tunes are published without one."""
    if not (folder / CONFIG_FILE).is_file() and has_weights(folder):
        for family in NEEDS_NO_CONFIG:
            if (implied := family_class(family).implied_config(folder)) is not None:
                return implied
    return read_config(folder)


def names_of(*folders: Path) -> tuple[str, ...]:
    """Return the names that folders go by: of one in the Hub's cache (models--ORG--NAME/snapshots/COMMIT) the
    repository's."""
    return tuple(
        folder.parent.parent.name.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.resolve().name
        for folder in folders
    )


def adapter_folder(folder: Path) -> Path | None:
    """Return the folder of a LoRA adapter's files, if this one holds an adapter and no model that it is merged into.

    openvla-oft's training writes them to `lora_adapter/`, beside merged weights or instead of them.
    """
    if has_weights(folder):
        path = folder / ADAPTER_CONFIG
        apart = path.is_file() and read_once(path, read_json_object).get("base_model_name_or_path") == OWN_BASE
        return folder if apart else None
    return next((place for place in (folder, folder / LORA_FOLDER) if (place / ADAPTER_CONFIG).is_file()), None)


def _find_base(folder: Path, name: str, revision: str | None) -> Path:
    if name == OWN_BASE:
        return folder
    instead = "give the model's folder or Hub id as policy_kwargs base"
    named = name in FAMILIES or user_path(name).is_dir() or parse_hub_id(name) is not None
    base = find_checkpoint(name, revision=revision) if named else None
    if base is None:
        raise BadValue(f"the adapter in '{folder}' belongs to the model '{name}', which is not here; {instead}")
    if adapter_folder(base) is not None:
        raise BadValue(
            f"the adapter in '{folder}' belongs to '{name}', which is an adapter itself: merge that first "
            f"(merge_adapter and save_pretrained of its policy), then {instead}"
        )
    return base


def _own_header(family: type[Backbone], model: ModelFolder, request: Request) -> Header:
    from vla_policies.backbone import Header

    folder, config = model.folder, dict(model.config)
    where = str(folder / CONFIG_FILE)
    if (version := config.pop("format_version", None)) != FORMAT_VERSION:
        raise BadValue(f"{where} has format_version {shown(version)}, this version reads {FORMAT_VERSION}")
    header = from_json(Header, config, where)
    if request.family is not None and family_class(request.family) is not family:
        raise BadValue(f"'{folder}' is of family '{family.family}', got family='{request.family}'; leave family out")
    if request.unnorm_key is not None:
        raise BadValue(
            f"family '{family.family}' has no action statistics, got unnorm_key='{request.unnorm_key}'; leave it out"
        )
    return replace(header, model=family.with_options(header.model, request.options, str(folder)))


def published_family(
    model: ModelFolder, wanted: str | None, warn: Callable[[str], None] = _log.warning
) -> type[Backbone]:
    """Return the family that reads a published folder: `wanted`, or the one that it is recognised as.

    Where several families' folders look alike and nothing tells which it is, a warning names them; where `wanted` is
    not what the folder is recognised as, one says so. Raises `BadValue` for a layout that none reads, and for a
    `wanted` family that does not read it.
    """
    # openpi's conversions do not name their layout.
    folder, config = model.folder, model.config
    openpi = "type" not in config and bool({"action_horizon", "paligemma_variant"} & config.keys())
    layout = "openpi" if openpi else str(config.get("model_type", config.get("type")))
    if layout not in PUBLISHED_LAYOUTS:
        raise BadValue(
            f"'{folder / CONFIG_FILE}' is neither ours (it lacks format_version and family) nor of a known model_type "
            f"({', '.join(sorted(PUBLISHED_LAYOUTS))}); it says '{layout}'"
        )
    families = PUBLISHED_LAYOUTS[layout]
    if wanted is not None and family_class(wanted).family not in families:
        raise BadValue(f"'{folder}' is read as one of: {', '.join(families)}; got family='{wanted}'")
    verdicts = {name: family_class(name).recognises(model) for name in families}
    found = next(name for name, verdict in verdicts.items() if verdict)
    if wanted is not None:
        if found != wanted and verdicts[wanted] is not None:
            warn(f"'{folder}' is read as {wanted}, as asked, but its name or files say {found}")
        return family_class(wanted)
    if unsure := [name for name, verdict in verdicts.items() if verdict is None]:
        warn(
            f"'{folder}' is read as {found}, but neither its files nor its name tell it from {unsure[0]}: say which "
            f"with family: {found} or family: {unsure[0]} (-params 'policy_kwargs:{{family: {unsure[0]}}}')"
        )
    return family_class(found)
