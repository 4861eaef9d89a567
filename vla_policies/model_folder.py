"""Records of a model's folder: its files, and how they are to be read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vla_gym.specs import ActionSpec
from vla_policies.checkpoint_io.json_records import as_annotated
from vla_policies.conventions import Conventions


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a checkpoint is to be read."""

    family: str | None = None
    """Name in `registry.FAMILIES`, where several families read the folder."""
    unnorm_key: str | None = None
    """Data set whose statistics turn the network's numbers into actions."""
    suite: str | None = None
    """Suite of the environment's tasks: chooses the statistics of that name where no `unnorm_key` does."""
    action_spec: ActionSpec | None = None
    """The environment's action convention; None = the checkpoint's."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The family's own settings, from the user's `backbone_kwargs`."""
    dtype: Any = None
    """Type of the large part of the weights: "auto", "float32" or "bfloat16", or torch's; None = the checkpoint's."""
    base: str | None = None
    """Folder or Hub id of the model that an adapter belongs to, instead of the one that the adapter names."""
    wanted: Conventions | None = None
    """The environment's conventions, for families whose checkpoints fit many chunks and robots."""
    verify: bool = True
    """Whether files, and an adapter's base model, must be those of the folder's manifest."""
    to_act: bool = False
    """Whether the policy is not to be trained: what `options` leave open is as the makers of a published folder had
    it."""

    def __post_init__(self) -> None:
        as_annotated(Mapping[str, Any], self.options, "backbone_kwargs")


Maker = Literal["lerobot", "openpi", "rlinf"]
"""Whose program made a published folder."""


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """Facts in the files of a folder that its makers published; the defaults where nothing tells."""

    maker: Maker | None = None
    """Whose program it was made with, where makers play the family otherwise than each other."""
    stated_options: Collection[str] = ()
    """The `backbone_kwargs` whose values its own files say; no recipe changes them."""
    trained_options: Mapping[str, Any] = field(default_factory=dict)
    """The `backbone_kwargs` with which its makers trained and play it."""
    data_sets: Collection[str] = ()
    """Data sets whose action statistics it has."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds a model, its configuration read."""

    folder: Path
    config: Mapping[str, Any]
    """Its `config.json`, the settings of an adapter on it over them."""
    beside: tuple[Path, ...] = ()
    """Folders of an adapter on it, nearest first."""
    names: tuple[str, ...] = ()
    """Names that it was published by, or that its maker gave it: of the folder, and of an adapter's."""

    @property
    def places(self) -> tuple[Path, ...]:
        """Folders to look for a file in: what an adapter's have comes before the folder's own."""
        return (*self.beside, self.folder)
