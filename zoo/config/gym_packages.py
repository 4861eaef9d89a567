"""`--gym-packages`: modules of the user's that register benchmarks, when a run begins and when it is opened again."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from vla_gym.errors import BadValue, check_known, shown
from vla_gym.registry import canonical_id
from zoo.config.settings import Parts, Settings
from zoo.files import quoted
from zoo.yaml_text import read_yaml_mapping

OWN, PUBLISHED = "gym_packages", "gym_packages_of_publisher"
"""Keys in `args.yml`: modules to import when the run is opened again; those that came with it from the Hub."""
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_UNASKED = "code that is not imported unasked. Read it, install it, then add"
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


def _look_here() -> None:
    if os.getcwd() not in sys.path:  # a console script does not look where it is called
        # Last: a file here must not stand in for an installed module, which every later import would take it for.
        sys.path.append(os.getcwd())


def import_gym_packages(names: Sequence[str], source: str = "--gym-packages") -> None:
    """Import the modules that `source` names; raises `BadValue` for one that is not there."""
    if names:
        _look_here()
    for name in names:
        if not _MODULE.fullmatch(name):
            raise BadValue(f"{source}: {shown(name)} is no name of a module, such as my_robot.tasks")
        _imported(name, source)
        _asked.setdefault(name)


def _imported(name: str, source: str) -> ModuleType:
    try:
        return import_module(name)
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


def import_parts(parts: Parts, setting: str, args_file: Path | None = None) -> list[Callable[..., Any]]:
    """Return the classes that a setting names, each with its arguments bound.

    `args_file` is that of the run which is opened again: one from the Hub imports nothing that was not asked for.
    Raises `BadValue` for a module that is not there, and `UnknownName` for a class.
    """
    _look_here()
    found: list[Callable[..., Any]] = []
    for part in [parts] if isinstance(parts, str | Mapping) else parts:
        for path, arguments in (part if isinstance(part, Mapping) else {part: {}}).items():
            name, _, member = path.rpartition(".")
            if args_file is not None and _from_hub(args_file) and name not in _asked:
                raise BadValue(f"{setting} {path} of a run from the Hub: {_UNASKED}{packages_flag([name])}")
            module = _imported(name, setting)
            check_known(f"{setting} of {name}", member, [key for key, one in vars(module).items() if callable(one)])
            found.append(partial(getattr(module, member), **arguments))
    return found


def built(part: Callable[..., Any], setting: str, kind: type, *arguments: Any) -> Any:
    """Return an instance of what `import_parts` found; raises `BadValue` where it takes other arguments, or is no
    `kind`."""
    try:
        made = part(*arguments)
    except (TypeError, AssertionError) as error:
        raise BadValue(f"{setting}: {error}") from error
    if not isinstance(made, kind):
        raise BadValue(f"{setting} must be a {kind.__name__}, got {type(made).__name__}")
    return made


def packages_of(args_file: Path) -> list[str]:
    """Return the modules that a run's `args.yml` names.

    Raises `BadValue` for a missing or damaged file, and where the run came from the Hub and needs modules that
    this command was not asked to import.
    """
    args = read_yaml_mapping(args_file, "flags to values")
    if _in_hub_cache(args_file):
        args = unarmed(args, args_file)
    if waiting := [name for name in _modules(args, PUBLISHED, args_file) if name not in _asked]:
        names = " ".join(map(shown, waiting))
        raise BadValue(
            f"this run came from the Hub, and its publisher's environment needs {names}: {_UNASKED}"
            f"{packages_flag(waiting)}"
        )
    return _modules(args, OWN, args_file)


def _in_hub_cache(args_file: Path) -> bool:
    return any(part.startswith("models--") for part in args_file.resolve().parts)


def _from_hub(args_file: Path) -> bool:
    return _in_hub_cache(args_file) or PUBLISHED in read_yaml_mapping(args_file, "flags to values")


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
