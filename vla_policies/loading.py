"""The way in: what a user says of a policy -> its backbone, fresh or loaded, fitted to an environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from vla_gym.errors import BadValue
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Request
from vla_policies.conventions import Conventions, check_compatible, check_spaces, conventions_of
from vla_policies.pretrained import (
    Pretrained,
    find_checkpoint,
    fresh_backbone,
    load_checkpoint,
    name_source,
    read_header,
)
from vla_policies.registry import FAMILIES, family_class


@dataclass(frozen=True)
class Found:
    """What a name stands for, no weights read."""

    folder: Path | None
    """Its checkpoint; None = fresh weights."""
    conventions: Conventions
    """What the checkpoint, or the family where weights are fresh, reads and writes where nobody says otherwise."""
    request: Request
    """How it is to be opened."""


def look_up(
    name: str, request: Request, revision: str | None = None, dtype: torch.dtype | str | None = None
) -> Found:
    """Find the checkpoint, downloading a Hub id, and read what it says; `dtype` becomes the family's option."""
    folder = find_checkpoint(name, request.options, revision)
    if folder is None:
        _check_fresh(name, request)
        return Found(None, family_class(name).default_conventions, replace(request, family=None))
    request = _by_name(request, name)
    header = read_header(folder, request)
    if dtype is not None:
        chosen = family_class(header.family).dtype_options(_dtype_name(dtype))
        request = replace(request, options={**request.options, **chosen})
    return Found(folder, header.conventions, request)


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
    loaded = load_checkpoint(folder, replace(_by_name(request, name), wanted=wanted))
    check_spaces(loaded.backbone.conventions, observation_space, action_space)
    if request.action_spec is not None:
        check_compatible(request.action_spec, loaded.backbone.conventions.action_spec)
    name_source(loaded.backbone, name, folder)
    return loaded


def _by_name(request: Request, name: str) -> Request:
    """A family's bare name says which family reads what it stands for, unless the user does."""
    return replace(request, family=request.family or name) if name in FAMILIES else request


def _check_fresh(name: str, request: Request) -> None:
    if request.family is not None and family_class(request.family).family != name:
        raise BadValue(f"'{name}' is of family '{name}', got family='{request.family}'")
    if request.unnorm_key is not None:
        raise BadValue(
            f"fresh weights of '{name}' keep no action statistics; got unnorm_key='{request.unnorm_key}'"
        )


def _dtype_name(dtype: torch.dtype | str) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in ("auto", "float32", "bfloat16"):
        raise BadValue(f"dtype must be auto, float32 or bfloat16, got '{name}'")
    return name
