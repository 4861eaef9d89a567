"""MuJoCo's own warnings, such as that a simulation has become unstable."""

from __future__ import annotations

import logging

import mujoco

_logger = logging.getLogger(__name__)


def log_warnings() -> None:
    """Send this process's warnings of MuJoCo to the log; by default it writes MUJOCO_LOG.TXT into the working
    directory."""
    mujoco.set_mju_user_warning(_log)


def _log(text: str) -> None:
    _logger.warning(f"MuJoCo: {' '.join(text.split())}")
