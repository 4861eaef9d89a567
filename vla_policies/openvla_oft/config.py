"""What OpenVLA-OFT's checkpoints keep in their makers' scripts: one row per robot platform."""

from __future__ import annotations

from typing import Any

from vla_policies.openvla.config import Settings

BASE = Settings(chunk=8, width_epsilon=1e-8)
"""LIBERO's row: chunks of 8, quantiles."""

PLATFORMS: dict[str, dict[str, Any]] = {
    "aloha": {"chunk": 25, "bounds": "min_max"},
    "bridge": {"chunk": 5},
}
"""First part of a data set's name -> what differs from `BASE` (openvla-oft 213c5ff8, `constants.py`)."""


def platform_settings(unnorm_key: str | None) -> dict[str, Any]:
    """What goes with a data set."""
    for prefix, settings in PLATFORMS.items():
        if unnorm_key is not None and unnorm_key.startswith(prefix):
            return dict(settings)
    return {}
