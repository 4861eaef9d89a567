"""YAML that people and other programs wrote: plain values only, within limits, one error for whatever is wrong.

Plain values are mappings with text keys, lists, text, numbers, true, false and null: what settings are made of. Dates
stay text, tags that make other things are refused. Anchors and `<<` work as long as what they stand for stays small.
"""

from __future__ import annotations

from collections import Counter
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
        if len(node.value) > 70 or abs(number := super().construct_yaml_int(node)) > LARGEST_INTEGER:
            raise yaml.YAMLError(f"{shown(node.value)} is too large for an integer")
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for name, count in Counter(own).items() if count > 1]:
            raise yaml.YAMLError(f"the key {shown(twice[0])} stands there twice")
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


def read_yaml(path: Path, where: str | None = None) -> Any:
    """Return the plain value in a file; raises `BadValue`, which names `where` or the file, for anything else."""
    return parse_yaml(read_text(path, most=4 * MOST_CHARACTERS), str(path) if where is None else where)


def read_yaml_mapping(path: Path, what: str, where: str | None = None) -> dict[str, Any]:
    """Return the mapping in a file; raises `BadValue` for anything else, which says `what` it must map."""
    values = read_yaml(path, where)
    if not isinstance(values, dict):
        raise BadValue(f"{path if where is None else where} must map {what}, got {type(values).__name__}")
    return values


def _check_size(node: yaml.Node, known: dict[int, int], open_nodes: set[int]) -> int:
    """Return how many values `node` stands for, aliases written out; raises where they are too many."""
    if id(node) in open_nodes:
        raise yaml.YAMLError("an alias stands for something that holds the alias itself")
    if id(node) not in known:
        open_nodes.add(id(node))
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_check_size(part, known, open_nodes) for part in parts)
        open_nodes.discard(id(node))
    if known[id(node)] > MOST_VALUES:
        raise yaml.YAMLError(f"aliases stand for more than {MOST_VALUES} values")
    return known[id(node)]
