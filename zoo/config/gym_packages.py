"""`--gym-packages`: modules of the user's that register benchmarks, when a run begins and when it is opened again."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from vla_gym.errors import BadValue, shown
from vla_gym.registry import canonical_id
from zoo.config.settings import Settings
from zoo.files import quoted
from zoo.yaml_text import read_yaml_mapping

OWN, PUBLISHED = "gym_packages", "gym_packages_of_publisher"
"""Keys in `args.yml`: modules to import when the run is opened again; those that came with it from the Hub."""
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_asked: dict[str, None] = {}
"""Modules that this process was asked to import, in order."""


def asked_packages() -> list[str]:
    """Return the modules that `import_gym_packages` has imported here."""
    return list(_asked)


def import_named_packages(args: argparse.Namespace) -> None:
    """Import the modules of `--gym-packages`; then `--env` gets its listed spelling, whatever case it was given in."""
    import_gym_packages(args.gym_packages)
    if args.env is not None:
        args.env = canonical_id(args.env)


def import_gym_packages(names: Sequence[str], source: str = "--gym-packages") -> None:
    """Import the modules that `source` names; raises `BadValue` for one that is not there."""
    if names and os.getcwd() not in sys.path:  # a console script does not look where it is called
        # Last: a file here must not stand in for an installed module, which every later import would take it for.
        sys.path.append(os.getcwd())
    for name in names:
        if not _MODULE.fullmatch(name):
            raise BadValue(f"{source}: {shown(name)} is no name of a module, such as my_robot.tasks")
        try:
            import_module(name)
        except Exception as error:  # the user's own code may raise anything
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                raise BadValue(
                    f"{source}: no module '{name}' in {os.getcwd()} or installed. Call the command in the folder "
                    "that holds it, or add its folder to PYTHONPATH"
                ) from error
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise BadValue(
                f"{source}: importing '{name}' raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            ) from error
        _asked.setdefault(name)


def packages_of(args_file: Path) -> list[str]:
    """Return the modules that a run's `args.yml` names.

    Raises `BadValue` for a missing or damaged file, and where the run came from the Hub and needs modules that
    this command was not asked to import.
    """
    args = read_yaml_mapping(args_file, "flags to values")
    if any(part.startswith("models--") for part in args_file.resolve().parts):
        args = unarmed(args, args_file)  # a folder of the Hub's own cache
    if waiting := [name for name in _modules(args, PUBLISHED, args_file) if name not in _asked]:
        names = " ".join(map(shown, waiting))
        raise BadValue(
            f"this run came from the Hub, and its publisher's environment needs {names}: code that is not imported "
            f"unasked. Read it, install it, then add{packages_flag(waiting)}"
        )
    return _modules(args, OWN, args_file)


def unarmed(args: Mapping[str, object], args_file: Path) -> Settings:
    """Return the flags of a published run so that opening it imports nothing unasked."""
    named = [*_modules(args, OWN, args_file), *_modules(args, PUBLISHED, args_file)]
    return {**args, OWN: [], PUBLISHED: list(dict.fromkeys(named))}


def _modules(args: Mapping[str, object], key: str, args_file: Path) -> list[str]:
    found = args.get(key) or []
    if not isinstance(found, list) or not all(isinstance(name, str) and _MODULE.fullmatch(name) for name in found):
        raise BadValue(f"{key} in {args_file} must be a list of modules, got {shown(found)}")
    return found


def import_packages_of(args_file: Path) -> None:
    """Import the modules that a run's `args.yml` names; raises `BadValue` for one that is not there."""
    import_gym_packages(packages_of(args_file), source=f"gym_packages in {args_file}")


def packages_flag(modules: Sequence[str]) -> str:
    """Return " --gym-packages MODULE ..." for a command about an environment that these modules register, or ""."""
    return " ".join(["", "--gym-packages", *map(quoted, modules)]) if modules else ""
