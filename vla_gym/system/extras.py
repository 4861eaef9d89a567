"""Whether an optional dependency is installed, and the command that installs it."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path

from vla_gym.errors import MissingDependency
from vla_gym.specs import Benchmark

DISTRIBUTION = "vla-zoo"


def install_command(extra: str) -> str:
    """Return pip's command line for an extra, e.g. "libero".

    Once the distribution is installed, from an index, a wheel or a checkout, pip takes the extra's packages from its
    metadata and asks no index for the distribution itself. A checkout that only stands in PYTHONPATH is installed.
    """
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f'pip install -e "{Path(__file__).parents[2]}[{extra}]"'
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def check_installed(benchmark: Benchmark) -> None:
    """Raise `MissingDependency` with the pip line unless every module the simulator needs is there."""
    missing = [name for name in benchmark.requires if importlib.util.find_spec(name) is None]
    if not missing:
        return
    command = install_command(benchmark.extra) if benchmark.extra else f"pip install {' '.join(missing)}"
    newest, here = benchmark.newest_python, sys.version_info[:2]
    first = ""
    if newest is not None and here > newest:
        first = " They have no wheels for Python {}.{}: make an environment with Python {}.{}.".format(*here, *newest)
    raise MissingDependency(
        f"{benchmark.id} needs {', '.join(missing)}, not installed here.{first} Install with: {command}"
    )
