"""One page for each command: its flags as its own parser has them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

from tables import cell, code, table

from zoo.cli.arguments import EXAMPLES
from zoo.cli.main import COMMANDS


def pages() -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown) of the table of commands and of each one's page."""
    rows = [(f"[`{name}`](generated/commands/pages/{name}.md)", cell(text)) for name, (_, text) in COMMANDS.items()]
    yield "commands/table.md", table(("command", "does"), rows)
    for name, (module, _) in COMMANDS.items():
        yield f"commands/pages/{name}.md", command_page(name, import_module(module).parser())


def command_page(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the page of one command."""
    rows = [(flags_of(action), cell(help_of(parser, action))) for action in parser._actions]
    return "\n".join(
        [
            f"# {name}\n",
            f"{parser.description}\n",
            "```bash\n" + "\n".join(EXAMPLES.get(name, (f"vla-zoo {name} ...",))) + "\n```\n",
            table(("flag", "means"), rows),
        ]
    )


def flags_of(action: argparse.Action) -> str:
    """Return a flag's spellings and its value's name."""
    value = ""
    if action.nargs != 0:
        choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else None
        value = " " + str(action.metavar or choices or action.dest.upper())
        value += " ..." if action.nargs in ("+", "*") else ""
    names = action.option_strings or [""]
    return "<br>".join(code(f"{name}{value}".strip()) for name in names)


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return a flag's help as `--help` prints it."""
    return parser._get_formatter()._expand_help(action) if action.help else ""
