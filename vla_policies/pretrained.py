"""From a name the user typed to a backbone: a family (fresh weights), a checkpoint folder, or a Hub id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, unknown_name
from vla_policies.backbone import Backbone
from vla_policies.conventions import Conventions, conventions_from_json
from vla_policies.records import from_json, to_json
from vla_policies.registry import FAMILIES, family_class
from vla_policies.sampling import Sampling
from vla_policies.weights import CONFIG_FILE, load_weights, read_config, write_checkpoint

FORMAT_VERSION = 1
_CONFIG_KEYS = ("format_version", "family", "conventions", "sampling", "model")
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint, its weights loaded."""

    backbone: Backbone
    """Network with its weights and conventions."""
    sampling: Sampling
    """How it drew its tokens when it was saved."""


@dataclass(frozen=True)
class Header:
    """What a checkpoint's `config.json` says."""

    family: str
    """Name in `registry.FAMILIES`."""
    conventions: Conventions
    """What the policy reads and writes."""
    sampling: Sampling
    """How it drew its tokens when it was saved."""
    model: Mapping[str, Any]
    """The family's own settings."""


def find_checkpoint(name: str) -> Path | None:
    """The checkpoint folder that `name` means, downloading a Hub id; None when `name` is a family.

    A name with one slash whose first part is no local folder is a Hub id, `org/model[@revision]`.
    """
    if name in FAMILIES:
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    hub = _HUB_ID.fullmatch(name)
    if hub and not name.startswith((".", "~")) and not path.parent.is_dir():
        return _download(hub["repo"], hub["revision"])
    if "/" in name or path.exists():
        raise BadValue(
            f"policy '{name}' is no checkpoint folder; it must be a folder with {CONFIG_FILE} and weights"
        )
    raise unknown_name("policy", name, FAMILIES)


def read_header(folder: Path) -> Header:
    """The folder's `config.json`, checked; no weights are read."""
    where = str(folder / CONFIG_FILE)
    config = read_config(folder)
    for key in config:
        if key not in _CONFIG_KEYS:
            raise unknown_name(f"setting in {where}", key, _CONFIG_KEYS)
    if lacking := [key for key in _CONFIG_KEYS if key not in config]:
        raise BadValue(f"{where} lacks {', '.join(lacking)}; it must have: {', '.join(_CONFIG_KEYS)}")
    if config["format_version"] != FORMAT_VERSION:
        raise BadValue(
            f"{where} has format_version {config['format_version']}, this version reads {FORMAT_VERSION}"
        )
    return Header(
        family=family_class(config["family"]).family,
        conventions=conventions_from_json(config["conventions"], f"conventions of {where}"),
        sampling=from_json(Sampling, config["sampling"], f"sampling of {where}"),
        model=config["model"],
    )


def load_checkpoint(folder: Path) -> Pretrained:
    """Read a folder written by `save_checkpoint`; anything missing, left over or unknown raises."""
    header = read_header(folder)
    where = f"model of {folder / CONFIG_FILE}"
    backbone = family_class(header.family).from_config(header.conventions, header.model, where)
    load_weights(folder, backbone)
    return Pretrained(backbone, header.sampling)


def save_checkpoint(folder: Path, backbone: Backbone, sampling: Sampling) -> None:
    """Write `config.json` and `model.safetensors`."""
    config = {
        "format_version": FORMAT_VERSION,
        "family": backbone.family,
        "conventions": backbone.conventions.to_json(),
        "sampling": to_json(sampling),
        "model": backbone.config_json(),
    }
    write_checkpoint(folder, config, backbone)


def fresh_backbone(family: str, conventions: Conventions, options: Mapping[str, Any]) -> Backbone:
    """New weights of `family` for an environment's conventions.

    Any family understands `cameras`, `image_size` and `use_state`, which narrow what is read of the
    environment; the other options are the family's own.
    """
    rest = dict(options)
    cameras = tuple(rest.pop("cameras", conventions.cameras))
    if missing := [key for key in cameras if key not in conventions.cameras]:
        raise BadValue(f"cameras {missing} are not in the observation; it has {list(conventions.cameras)}")
    narrowed = replace(
        conventions,
        cameras=cameras,
        image_size=rest.pop("image_size", conventions.image_size),
        state_dim=conventions.state_dim if rest.pop("use_state", True) else 0,
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
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = snapshot_download(repo, revision=revision, allow_patterns=["*.json", "*.safetensors"])
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        at = f" at revision '{revision}'" if revision else ""
        raise BadValue(
            f"policy '{repo}' is no family ({', '.join(sorted(FAMILIES))}), no folder, and could not be fetched "
            f"from the Hugging Face Hub{at}: {(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
    return Path(folder)
