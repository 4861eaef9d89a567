"""`--gym-packages`: modules of the user's that register benchmarks, when a run begins and when it is opened again."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import yaml

from vla_gym.errors import BadValue
from vla_gym.registry import canonical_id
from zoo.files import quoted


def import_named_packages(args: argparse.Namespace) -> None:
    """Import the modules of `--gym-packages`; then `--env` gets its listed spelling, whatever case it was given in."""
    import_gym_packages(args.gym_packages)
    if args.env is not None:
        args.env = canonical_id(args.env)


def import_gym_packages(names: Sequence[str], source: str = "--gym-packages") -> None:
    """Import the modules that `source` names; raises `BadValue` for one that is not there."""
    if os.getcwd() not in sys.path:  # a console script does not look where it is called
        sys.path.insert(0, os.getcwd())
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise BadValue(
                f"{source}: no module '{name}' in {os.getcwd()} or installed. Call the command in the folder "
                "that holds it, or add its folder to PYTHONPATH"
            ) from error


def packages_of(args_file: Path) -> list[str]:
    """Return the modules that a run's `args.yml` names; raises `BadValue` for a missing or damaged file."""
    try:
        args = yaml.safe_load(args_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadValue(f"cannot read {args_file}: {' '.join(str(error).split())}") from error
    found = args.get("gym_packages") if isinstance(args, dict) else None
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise BadValue(f"gym_packages in {args_file} must be a list of modules, got {found!r}")
    return found


def import_packages_of(args_file: Path) -> None:
    """Import the modules that a run's `args.yml` names; raises `BadValue` for one that is not there."""
    import_gym_packages(packages_of(args_file), source=f"gym_packages in {args_file}")


def packages_flag(modules: Sequence[str]) -> str:
    """Return " --gym-packages MODULE ..." for a command about an environment that these modules register, or ""."""
    return " ".join(["", "--gym-packages", *map(quoted, modules)]) if modules else ""
