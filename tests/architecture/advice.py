"""Advice in the messages of the tree: command lines, flags and `-params`, as the user reads them."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FLAG = re.compile(r"(?<![\w-])(--[a-z][\w-]*[a-z0-9]|-params|-conf|-tb|-[infeoPa](?= [A-Z0-9'{]))(?![\w-])")
COMMAND = re.compile(r"(?<![\w.])zoo\.([a-z_]+)(?=[\s`'\",.;:)]|$)")
HOLE = "7"
"""Stands for what a message fills in: a name, a path or a number."""
_ENDS = re.compile(r"[;\n#]|\s\(|,(?=\s|$)|\.(?=\s|$)|\s{3,}|\)(?=\s|$)|\s\.\.\.|:(?=\s|$)")
"""Where a command line ends and prose goes on."""


@dataclass(frozen=True)
class Message:
    """A text that a module may show."""

    module: str
    function: str
    """The innermost function it stands in; "" for none."""
    line: int
    text: str
    """What it fills in stands as `HOLE`."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.text}"


def messages(module: str, source: str) -> Iterator[Message]:
    """Every text of a module but docstrings, definitions of flags, and pieces of other texts."""
    yield from _inside(module, "", ast.parse(source))


def _inside(module: str, function: str, parent: ast.AST) -> Iterator[Message]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.JoinedStr):
            yield Message(module, function, node.lineno, _filled(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Message(module, function, node.lineno, node.value)
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        definition = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("add_argument", "OneLineParser"))
        if not (docstring or definition):
            inner = node.name if isinstance(node, ast.FunctionDef) else function
            pieces = (
                [part for part in node.values if isinstance(part, ast.FormattedValue)]
                if isinstance(node, ast.JoinedStr)
                else [node]
            )
            for piece in pieces:
                yield from _inside(module, inner, piece)


def _filled(node: ast.JoinedStr) -> str:
    """What is filled in right behind a word is an ending that may be empty (`zoo.train{packages}`)."""
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif re.search(r"zoo\.[a-z_]+$", text):
            continue
        else:
            text += HOLE
    return text


def command_lines(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, words behind it as far as a command line can go) for each `zoo.NAME` in a message."""
    for found in COMMAND.finditer(text):
        rest = text[found.end() :]
        end = _ENDS.search(rest)
        line = rest[: end.start()] if end else rest
        try:
            words = shlex.split(line)
        except ValueError:  # a quote that the prose opened
            words = line.split()
        yield found[1], words


def flags(text: str) -> list[str]:
    """The flags that a message names."""
    return [found[1] for found in FLAG.finditer(text)]


def settings(text: str) -> list[str]:
    """The values of `-params` that a message quotes: what the user is to type behind it."""
    return [
        value
        for found in re.finditer(r"-params((?: (?:'[^']*'|\"[^\"]*\"|\w+:[\w.+-]+))+)", text)
        for value in shlex.split(found[1])
    ]


def taken(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """The words that belong to the command line: flags with their values and positional arguments, then prose begins.

    Raises `LookupError` for a flag that the command does not have.
    """
    actions: Mapping[str, argparse.Action] = {
        name: action for action in parser._actions for name in action.option_strings
    }
    positional = any(not action.option_strings for action in parser._actions)
    line: list[str] = []
    left: float = 0
    for word in words:
        if re.fullmatch(r"--?[A-Za-z][\w-]*", word):
            if word not in actions:
                raise LookupError(f"{parser.prog} has no {word}")
            number = actions[word].nargs
            left = {None: 1, 0: 0, "?": 1}.get(number, float("inf"))  # type: ignore[arg-type]
        elif word == "--":
            return line
        elif left:
            left -= 1
        elif positional and not line:
            positional = False
        else:
            return line
        line.append(word)
    return line
