"""`vla-zoo completion bash`: a script that completes the commands, their flags, environment ids and files in a shell.

    vla-zoo completion bash > ~/.local/share/bash-completion/completions/vla-zoo
    vla-zoo completion zsh > ~/.zfunc/_vla-zoo        (a folder on zsh's fpath)

The names of benchmarks of one's own are not in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module

import shtab

from vla_gym.registry import list_envs
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import COMMANDS, guarded

SHELLS = ("bash", "zsh", "tcsh")
_FOLDERS = ("log_folder", "tensorboard_log", "run", "resume", "dataset")
"""Arguments that are folders, or names that begin like their paths; every FILE is a path, too."""


def parser() -> OneLineParser:
    """The arguments of `vla-zoo completion`."""
    p = OneLineParser("vla-zoo completion", "Print a script that completes vla-zoo's commands and flags in a shell.")
    p.add_argument("shell", choices=SHELLS, help="whose script to print")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    print(shtab.complete(console_script_parser(), shell=args.shell))
    return 0


def console_script_parser() -> argparse.ArgumentParser:
    """Return one parser with a subparser for each command of `vla-zoo`; it completes and is not parsed with."""
    whole = OneLineParser("vla-zoo", "")
    # A plain parser: subparsers are made with other arguments than `OneLineParser` takes.
    commands = whole.add_subparsers(parser_class=argparse.ArgumentParser)
    for name, (module, text) in COMMANDS.items():
        of_command: Callable[[], argparse.ArgumentParser] = import_module(module).parser
        command = commands.add_parser(name, help=text, parents=[of_command()], add_help=False)
        for action in command._actions:
            _complete_values(action)
    return whole


def _complete_values(action: argparse.Action) -> None:
    if action.dest in ("env", "pattern"):
        action.choices = list_envs()
    elif action.dest in _FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif action.metavar == "FILE":
        action.complete = shtab.FILE  # type: ignore[attr-defined]


if __name__ == "__main__":
    raise SystemExit(guarded(run))
