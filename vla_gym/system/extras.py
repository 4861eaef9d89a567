"""The command that installs what an extra of this distribution brings."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

DISTRIBUTION = "vla-zoo"
_CHECKOUT = Path(__file__).parents[2]
"""Folder that the packages lie in."""


def install_command(extra: str) -> str:
    """Return pip's command line for an extra, e.g. "libero".

    Once the distribution is installed, from an index, a wheel or a checkout, pip takes the extra's packages from its
    metadata and asks no index for the distribution itself. A checkout that only stands in PYTHONPATH is installed.
    """
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f'pip install -e "{_CHECKOUT}[{extra}]"'
    return f'pip install "{DISTRIBUTION}[{extra}]"'
