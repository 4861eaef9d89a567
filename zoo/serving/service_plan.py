"""The record of a policy that is to be served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """A policy to serve; nothing heavy has been loaded for it."""

    name: str
    """As the user named it, for reports."""
    policy: str
    """Checkpoint folder, Hub id or family name."""
    family: str
    """Its family."""
    env: str | None
    """Environment id it was trained in, or is to act in; None where that is not known."""
    env_options: Mapping[str, Any]
    """Keyword arguments of `make_vec` that give its observations."""
    suite: str | None = None
    """Suite of the environment's tasks, where it is one."""
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `VLAPolicy.from_pretrained` that say how the policy is opened."""
