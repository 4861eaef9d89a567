"""The `--gym-packages` that a run was begun with: without them its environment is not known when it is opened again."""

from __future__ import annotations

from pathlib import Path

import yaml

from vla_gym.errors import BadValue
from zoo.cli.arguments import import_gym_packages


def packages_of(args_file: Path) -> list[str]:
    """The modules that a run's `args.yml` names; raises `BadValue` where the file cannot be read or names none well."""
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
    import_gym_packages(packages_of(args_file), told_by=f"gym_packages in {args_file}")
