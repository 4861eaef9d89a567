"""YAML that people and other programs wrote: plain values only, within limits, one error for whatever is wrong.

Plain values are mappings with text keys, lists, text, numbers, true, false and null: what settings are made of. Dates
stay text, tags that make other things are refused. Anchors and `<<` work as long as what they stand for stays small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from vla_gym.errors import BadValue, shown
from vla_gym.reading import read_text

MOST_CHARACTERS = 4 * 2**20
"""Longest text that is read."""
MOST_VALUES = 100_000
"""Most values in a text, each alias counted as all that it stands for: ten lines can stand for 9^9."""
DEEPEST = 50
"""Most levels of lists and mappings in each other."""
_MOST_BRACKETS = 500
LARGEST_INTEGER = 2**63 - 1
"""Largest absolute integer: no count, step or seed is larger, and Python shows none of thousands of digits."""


class _PlainLoader(yaml.SafeLoader):
    """Constructs plain values; its errors have no common base, see `parse_yaml`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._level += 1
        if self._level > DEEPEST:
            raise yaml.YAMLError(f"lists and mappings are nested more than {DEEPEST} deep")
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > 70:
            raise yaml.YAMLError(f"{shown(node.value)} is too large for an integer")
        number = super().construct_yaml_int(node)
        if abs(number) > LARGEST_INTEGER:
            raise yaml.YAMLError(f"{shown(node.value)} is too large for an integer")
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key.value, str):
                raise yaml.YAMLError("a key must be text, not a list or a mapping")
            if key.value in own:
                raise yaml.YAMLError(f"the key {shown(key.value)} stands there twice")
            own.add(key.value)
        values = super().construct_mapping(node, deep)
        for key in values:
            if not isinstance(key, str):
                raise yaml.YAMLError(f"a key must be text, got {shown(key)}; quote it")
        return values


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_PlainLoader.yaml_constructors = {
    f"tag:yaml.org,2002:{kind}": getattr(_PlainLoader, f"construct_yaml_{kind}") for kind in _KINDS
} | {None: yaml.SafeLoader.construct_undefined}


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain value in `text`; raises `BadValue` that begins with `where` for anything else."""
    if len(text) > MOST_CHARACTERS:
        raise BadValue(f"{where}: {len(text)} characters are too many, at most {MOST_CHARACTERS} are read")
    if _open_brackets(text) > _MOST_BRACKETS:  # the scanner takes the square of their number before it sees the first
        raise BadValue(f"{where} is not valid YAML: lists and mappings are nested more than {DEEPEST} deep")
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, {}, set())
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # Values such as `!!int abc` or `0x_` raise what Python's own constructors raise.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadValue(f"{where} is not valid YAML: {reason}") from error


def _open_brackets(text: str) -> int:
    """Return the most brackets that are open at once, those in quoted texts counted as well."""
    most = level = 0
    for char in text if "[" in text or "{" in text else "":
        if char in "[{":
            level += 1
            most = max(most, level)
        elif char in "]}":
            level -= 1
    return most


def read_yaml(path: Path, where: str | None = None) -> Any:
    """Return the plain value in a file; raises `BadValue`, which names `where` or the file, for anything else."""
    return parse_yaml(read_text(path, most=4 * MOST_CHARACTERS), str(path) if where is None else where)


def read_yaml_mapping(path: Path, what: str, where: str | None = None) -> dict[str, Any]:
    """Return the mapping in a file; raises `BadValue` for anything else, which says `what` it must map."""
    values = read_yaml(path, where)
    if not isinstance(values, dict):
        raise BadValue(f"{path if where is None else where} must map {what}, got {type(values).__name__}")
    return values


def _check_size(node: yaml.Node, known: dict[int, tuple[int, int]], open_nodes: set[int]) -> tuple[int, int]:
    """Return the values and the levels that `node` stands for, aliases written out; raises where they are too many."""
    if id(node) in known:
        return known[id(node)]
    if id(node) in open_nodes:
        raise yaml.YAMLError("an alias stands for something that holds the alias itself")
    open_nodes.add(id(node))
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    sizes = [_check_size(part, known, open_nodes) for part in parts]
    size = 1 + sum(values for values, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
    if size[0] > MOST_VALUES or size[1] > DEEPEST:
        raise yaml.YAMLError(f"aliases stand for more than {MOST_VALUES} values or {DEEPEST} levels")
    open_nodes.discard(id(node))
    known[id(node)] = size
    return size
