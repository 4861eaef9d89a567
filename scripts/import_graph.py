"""The import graph of the three packages, read with `ast`: modules, arrows and circles.

`tests/architecture` holds the tree to its table with it; `scripts/measure_house.py` counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PACKAGES = ("vla_gym", "vla_policies", "zoo")

When = Literal["load", "call", "typing"]
"""When an import runs: as the module is loaded, inside a function, or for type checkers alone."""


@dataclass(frozen=True)
class Import:
    """One imported name."""

    name: str
    """`a.b` for `import a.b` and for `from a import b`."""
    when: When


def imports(source: str) -> Iterator[Import]:
    """Yield every import of a file's text; relative ones are refused."""

    def visit(node: ast.AST, when: When) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: absolute imports only")
            yield from (Import(f"{node.module}.{alias.name}", when) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, "typing")
            for child in node.orelse:
                yield from visit(child, when)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, "call" if inside and when == "load" else when)

    yield from visit(ast.parse(source), "load")


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a file below `root`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_files(root: Path) -> dict[str, Path]:
    """Return dotted name -> file of every module of the three packages."""
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {module_name(path, root): path for path in paths}


@dataclass(frozen=True)
class Arrow:
    """One module of ours imports another."""

    source: str
    target: str
    when: When


def arrows(sources: Mapping[str, str]) -> list[Arrow]:
    """Return who imports whom among the modules of `sources` (dotted name -> text), without repeats.

    `from a import b` is an arrow to the module `a.b` where there is one, else to `a`.
    """
    found: dict[Arrow, None] = {}
    for module, source in sources.items():
        for imported in imports(source):
            target = imported.name if imported.name in sources else imported.name.rpartition(".")[0]
            if target in sources and target != module:
                found[Arrow(module, target, imported.when)] = None
    return list(found)


def circles(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the groups of two or more names that reach each other along `pairs`, each sorted (Tarjan's algorithm)."""
    graph: dict[str, set[str]] = {}
    for source, target in pairs:
        graph.setdefault(source, set()).add(target)
        graph.setdefault(target, set())
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in order:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in stack:
                lowest[name] = min(lowest[name], order[target])
        if lowest[name] == order[name]:
            place = stack.index(name)
            group = sorted(stack[place:])
            del stack[place:]
            if len(group) > 1:
                found.append(group)

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(found)


def package_of(module: str) -> str:
    """Return a module's package: the folder or file directly below its package (`zoo.runs`, `zoo.files`)."""
    return ".".join(module.split(".")[:2])
