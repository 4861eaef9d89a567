"""From a name the user typed to a backbone: a family (fresh weights), a checkpoint folder, or a Hub id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from vla_gym.errors import BadValue, VLAZooError, unknown_name
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Backbone, Header, Request
from vla_policies.checkpoint_io.hub import CHECKPOINTS, POLICY_FILES, HubId, fetch, parse_hub_id
from vla_policies.checkpoint_io.json_records import as_annotated, from_json, to_json
from vla_policies.checkpoint_io.weights import CONFIG_FILE, read_config
from vla_policies.conventions import Conventions, conventions_from_json
from vla_policies.processing.norm_stats import STATISTICS_FILE
from vla_policies.registry import FAMILIES, PUBLISHED_LAYOUTS, family_class

FORMAT_VERSION = 1
_CONFIG_KEYS = ("format_version", "family", "conventions", "sampling", "model")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_SETTINGS = "vla_zoo.json"
"""Beside an adapter: what goes over its base's `config.json`."""
_DAMAGE = (
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ValueError,
    ArithmeticError,
    StrictDataclassError,
)
"""What reading and building raise where a file holds something else than its layout says; transformers checks its
configs by the last."""


@dataclass(frozen=True)
class Adapter:
    """A folder that holds a LoRA adapter alone."""

    base_name: str
    """Folder or Hub id of the model it belongs to."""
    revision: str | None
    """Commit of the Hub id that it was trained on, where that is known."""
    base: Path
    """That model's folder."""
    config: Mapping[str, Any]
    """The model's `config.json` with the adapter's own settings and statistics over it."""


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint, its weights loaded."""

    backbone: Backbone
    """Network with its weights and conventions."""
    sampling: Sampling
    """How it drew its tokens when it was saved."""


def find_checkpoint(
    name: str, options: Mapping[str, Any] | None = None, revision: str | None = None
) -> Path | None:
    """The checkpoint folder that `name` means, downloading a Hub id; None when fresh weights are meant.

    A family's bare name stands for its published checkpoint, or for fresh weights where it has none or
    where `options` (the user's `backbone_kwargs`) describe some. A name with one slash whose first part is
    no local folder is a Hub id, `org/model[@revision]`.
    """
    if name in FAMILIES:
        family = family_class(name)
        if family.published is None or family.wants_fresh(options or {}):
            if revision is not None:
                raise BadValue(f"revision '{revision}' is for Hub ids; '{name}' means fresh weights here")
            return None
        return _download(family.published, revision)
    path = Path(name).expanduser()
    if path.is_dir():
        if revision is not None:
            raise BadValue(f"revision '{revision}' is for Hub ids; '{name}' is a folder")
        return path
    hub = parse_hub_id(name)
    if hub is not None:
        return _download(hub.repo, revision or hub.revision)
    if "/" in name or path.exists():
        raise BadValue(
            f"policy '{name}' is no checkpoint folder; it must be a folder with {CONFIG_FILE} and weights"
        )
    raise unknown_name("policy", name, FAMILIES)


def read_header(folder: Path, request: Request | None = None) -> Header:
    """The folder's `config.json`, ours or a published one, checked; no weights are read."""
    request = request or Request()
    with _opening(folder):
        adapter = _open_adapter(folder)
        if adapter is not None:
            return _published_header(adapter.base, adapter.config, request)
        config = read_config(folder)
        if "format_version" in config or "family" in config:
            return _own_header(folder, config, request)
        return _published_header(folder, config, request)


@contextmanager
def _opening(folder: Path) -> Iterator[None]:
    """Any file of a folder may hold anything: what our own checks do not name is named by the folder."""
    try:
        yield
    except VLAZooError:
        raise
    except _DAMAGE as error:
        cause = shorten(f"{type(error).__name__}: {error}", 200)
        raise BadValue(
            f"'{folder}' cannot be opened: a file holds what does not belong there ({cause})"
        ) from error


def _published_header(folder: Path, config: Mapping[str, Any], request: Request) -> Header:
    kind = _layout(config)
    if kind not in PUBLISHED_LAYOUTS:
        raise BadValue(
            f"'{folder / CONFIG_FILE}' is neither ours (it lacks {', '.join(_CONFIG_KEYS)}) nor of a known "
            f"model_type ({', '.join(sorted(PUBLISHED_LAYOUTS))}); it says '{kind}'"
        )
    families = PUBLISHED_LAYOUTS[kind]
    if request.family is not None and family_class(request.family).family not in families:
        raise BadValue(f"'{folder}' is read as one of: {', '.join(families)}; got family='{request.family}'")
    candidates = [family_class(name) for name in families]
    chosen = (
        family_class(request.family)
        if request.family is not None
        else next(one for one in candidates if one.recognises(folder, config))
    )
    return chosen.read_official(folder, config, request)


def load_checkpoint(folder: Path, request: Request | None = None) -> Pretrained:
    """Read a checkpoint folder; anything missing, left over or unknown raises."""
    with _opening(folder):
        header = read_header(folder, request)
        adapter = _open_adapter(folder)
        base = folder if adapter is None else adapter.base
        where = f"model of {base / CONFIG_FILE}"
        backbone = family_class(header.family).from_config(header.conventions, header.model, where)
        backbone.load(base)
        if adapter is None:
            backbone.source = str(folder.resolve())
        else:
            backbone.source, backbone.source_revision = adapter.base_name, adapter.revision
            backbone.load_adapter(folder)
    return Pretrained(backbone, header.sampling)


def name_source(backbone: Backbone, name: str, folder: Path) -> None:
    """After `load_checkpoint(folder)`: a Hub id and its commit say more to others than the place of its copy here."""
    if backbone.source == str(folder.resolve()) and not Path(name).expanduser().is_dir():
        backbone.source = backbone.published if name in FAMILIES else name.partition("@")[0]
        backbone.source_revision = folder.name


def save_adapter(folder: Path, backbone: Backbone, sampling: Sampling, base: str | None) -> None:
    """Write the adapter alone, naming the model it belongs to."""
    name = base or backbone.source
    if name is None:
        raise BadValue("fresh weights have no name to put on an adapter; save_pretrained writes them whole")
    backbone.save_adapter(folder, {"sampling": to_json(sampling)}, name)


def _open_adapter(folder: Path) -> Adapter | None:
    if not (folder / ADAPTER_CONFIG).is_file() or (folder / CONFIG_FILE).is_file():
        return None
    from vla_policies.modules.lora import read_adapter_config  # loads peft, which most policies do without

    values = read_adapter_config(folder)
    name = str(values["base_model_name_or_path"])
    revision = None if Path(name).is_dir() else values.get("revision")
    base = find_checkpoint(name, revision=revision)
    if base is None:
        raise BadValue(
            f"the adapter in '{folder}' must name its base's folder or Hub id, got the family '{name}'"
        )
    config = read_config(base)
    if (folder / ADAPTER_SETTINGS).is_file():
        config |= read_config(folder, ADAPTER_SETTINGS)
    if (folder / STATISTICS_FILE).is_file():
        config["norm_stats"] = {**config.get("norm_stats", {}), **read_config(folder, STATISTICS_FILE)}
    return Adapter(name, revision, base, config)


def save_checkpoint(folder: Path, backbone: Backbone, sampling: Sampling) -> None:
    """Write the folder in the family's layout: ours (`config.json`, `model.safetensors`) or the published one."""
    config = {
        "format_version": FORMAT_VERSION,
        "family": backbone.family,
        "conventions": backbone.conventions.to_json(),
        "sampling": to_json(sampling),
        "model": backbone.config_json(),
    }
    backbone.save(folder, config)


def _own_header(folder: Path, config: Mapping[str, Any], request: Request) -> Header:
    where = str(folder / CONFIG_FILE)
    for key in config:
        if key not in _CONFIG_KEYS:
            raise unknown_name(f"setting in {where}", key, _CONFIG_KEYS)
    if lacking := [key for key in _CONFIG_KEYS if key not in config]:
        raise BadValue(f"{where} lacks {', '.join(lacking)}; it must have: {', '.join(_CONFIG_KEYS)}")
    if config["format_version"] != FORMAT_VERSION:
        raise BadValue(
            f"{where} has format_version {config['format_version']}, this version reads {FORMAT_VERSION}"
        )
    family = family_class(config["family"]).family
    if request.family is not None and family_class(request.family).family != family:
        raise BadValue(f"'{folder}' is of family '{family}', got family='{request.family}'")
    if request.unnorm_key is not None:
        raise BadValue(
            f"family '{family}' keeps no action statistics; unnorm_key must be None, got '{request.unnorm_key}'"
        )
    return Header(
        family=family,
        conventions=conventions_from_json(config["conventions"], f"conventions of {where}"),
        sampling=from_json(Sampling, config["sampling"], f"sampling of {where}"),
        model=family_class(family).with_options(config["model"], request.options, str(folder)),
    )


def _layout(config: Mapping[str, Any]) -> str:
    """Key of `PUBLISHED_LAYOUTS`; openpi's conversions do not name theirs."""
    if "type" not in config and "action_horizon" in config:
        return "openpi"
    return str(config.get("model_type", config.get("type")))


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
    """Options with which `fresh_backbone` builds a network of the same shape."""
    conventions = backbone.conventions
    return {
        **backbone.config_json(),
        "cameras": list(conventions.cameras),
        "image_size": conventions.image_size,
        "use_state": conventions.state_dim > 0,
    }


def _download(repo: str, revision: str | None) -> Path:
    return fetch(HubId(repo, revision), allow=POLICY_FILES, ignore=(CHECKPOINTS,))
