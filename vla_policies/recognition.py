"""Which family reads a folder in the layout that its makers publish."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

from vla_gym.errors import BadValue
from vla_policies.backbone import Backbone
from vla_policies.checkpoint_io.folder import CONFIG_FILE
from vla_policies.model_folder import ModelFolder
from vla_policies.registry import PUBLISHED_LAYOUTS, family_class

_log = logging.getLogger(__name__)


def names_of(*folders: Path) -> tuple[str, ...]:
    """The names that folders go by: of one in the Hub's cache (models--ORG--NAME/snapshots/COMMIT) the repository's."""
    return tuple(
        folder.parent.parent.name.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.resolve().name
        for folder in folders
    )


def published_family(model: ModelFolder, wanted: str | None) -> type[Backbone]:
    """The family that reads a published folder: `wanted`, or the one that it is recognised as.

    Where several families' folders look alike and nothing tells which it is, a warning names them; where `wanted` is
    not what the folder is recognised as, one says so. Raises `BadValue`
    for a layout that none reads, and for a `wanted` family that does not read it.
    """
    # openpi's conversions do not name their layout.
    folder, config = model.folder, model.config
    openpi = "type" not in config and bool({"action_horizon", "paligemma_variant"} & config.keys())
    layout = "openpi" if openpi else str(config.get("model_type", config.get("type")))
    if layout not in PUBLISHED_LAYOUTS:
        raise BadValue(
            f"'{folder / CONFIG_FILE}' is neither ours (it lacks format_version, family, conventions, sampling, model) "
            f"nor of a known model_type ({', '.join(sorted(PUBLISHED_LAYOUTS))}); it says '{layout}'"
        )
    families = PUBLISHED_LAYOUTS[layout]
    if wanted is not None:
        family = family_class(wanted)
        if family.family not in families:
            raise BadValue(f"'{folder}' is read as one of: {', '.join(families)}; got family='{wanted}'")
    verdicts = {name: family_class(name).recognises(model) for name in families}
    found = next(name for name, verdict in verdicts.items() if verdict)
    if wanted is not None:
        if found != family.family and verdicts[family.family] is not None:
            _warn_of_choice(folder, family.family, found)
        return family
    if unsure := [name for name, verdict in verdicts.items() if verdict is None]:
        _warn_of_families(folder, found, unsure[0])
    return family_class(found)


@lru_cache
def _warn_of_choice(folder: Path, wanted: str, found: str) -> None:
    """Say once per process that a folder is read as another family than it is recognised as."""
    _log.warning(f"'{folder}' is read as {wanted}, as asked, but its name or files say {found}")


@lru_cache
def _warn_of_families(folder: Path, found: str, other: str) -> None:
    """Say once per process that a folder's family is a guess."""
    _log.warning(
        f"'{folder}' is read as {found}, but neither its files nor its name tell it from {other}: say which with "
        f"family: {found} or family: {other} (-params 'policy_kwargs:{{family: {other}}}')"
    )
