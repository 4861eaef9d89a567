"""Files of a checkpoint folder but for tensors: their names, settings read and checked, JSON and text written.

A file of settings is read once while a folder is opened (`read_once`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from vla_gym.errors import BadValue, shown
from vla_gym.reading import MOST_BYTES, as_object, decoded, parse_json, read_bytes, read_json_object
from vla_policies.checkpoint_io.json_records import as_annotated

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = WEIGHTS_FILE + ".index.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_SETTINGS = "vla_zoo.json"
"""Beside an adapter: settings that override its base's `config.json`."""
OWN_KEY = "vla_zoo"
"""Key of a published layout's `config.json` under which a folder that this project wrote keeps its own settings."""

_Content = TypeVar("_Content")
HASH = "sha256"
"""Kind of what `reading_once` keeps beside content: SHA-256 of the bytes that `read_settings` read."""
_READ: ContextVar[dict[tuple[str, Path], Any] | None] = ContextVar("read", default=None)


@contextmanager
def reading_once(read: dict[tuple[str, Path], Any]) -> Iterator[None]:
    """Context manager in which `read_once` keeps what it reads in `read`, and takes it from there."""
    token = _READ.set(read)
    try:
        yield
    finally:
        _READ.reset(token)


def read_once(path: Path, reader: Callable[[Path], _Content]) -> _Content:
    """Return `reader(path)`, kept within `reading_once`; the caller must not change it."""
    read = _READ.get()
    if read is None:
        return reader(path)
    key = (reader.__name__, path)
    if key not in read:
        read[key] = reader(path)
    return read[key]


def read_settings(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, its sizes checked."""
    data = read_bytes(path, most=MOST_BYTES)
    if (read := _READ.get()) is not None:
        read[HASH, path] = hashlib.sha256(data).hexdigest()
    values = as_object(parse_json(decoded(data, path), path), path)
    check_sizes(values, path)
    return values


def read_config(folder: Path, name: str = CONFIG_FILE) -> dict[str, Any]:
    """Return the folder's `config.json` (or another JSON object of settings).

    Raises `BadValue` that names what the folder lacks, or a size that no network has.
    """
    return read_once(require_file(folder, name), read_settings)


def require_file(folder: Path, name: str) -> Path:
    """Return the path of the folder's file; raises `BadValue` where there is none."""
    if not (folder / name).is_file():
        best = folder / "best"
        run = f". Of a run, give '{best}'" if best.is_dir() else ""
        raise BadValue(f"checkpoint folder '{folder}' lacks {name}; it must hold {CONFIG_FILE} and {WEIGHTS_FILE}{run}")
    return folder / name


def has_weights(folder: Path) -> bool:
    """Whether the folder has `model.safetensors` or an index of shards."""
    return any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE))


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors: the one file, or all shards of the index."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    index_path = folder / INDEX_FILE
    if not index_path.is_file():
        raise BadValue(f"checkpoint folder '{folder}' lacks {WEIGHTS_FILE} (or {INDEX_FILE} and its shards)")
    index = read_json_object(index_path).get("weight_map")
    names = as_annotated(Mapping[str, str], index, f"weight_map of '{index_path}'").values()
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise BadValue(f"checkpoint folder '{folder}' lacks the shard {shown(name)} that {INDEX_FILE} lists")
    return [folder / name for name in sorted(set(names))]


def one_file(folder: Path, pattern: str) -> Path | None:
    """The only file that matches, None when there is none; several raise."""
    found = sorted(folder.glob(pattern))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BadValue(f"'{folder}' has {len(found)} files like {pattern}: {names}")
    return found[0] if found else None


def write_json(path: Path, values: Mapping[str, Any], *, sort_keys: bool = False) -> None:
    """Write one JSON object."""
    write_text(path, json.dumps(values, indent=2, sort_keys=sort_keys) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write one text file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, path)


# Limits of sizes

_PICTURES = (
    r"(image|input|crop|patch|resize).*(size|sizes|padding|resolution)$|^(size|height|longest_edge|shortest_edge)$"
)
_WIDTHS = r"(size|dim|dims|width|heads|features|(?<!model_max_)length|shape|rank|bins|points|cameras)$"
_STEPS = r"^(?!scheduler_|optimizer_).*steps$"
MOST = tuple(
    (re.compile(pattern), most)
    for pattern, most in (
        (r"(layers|depth|blocks)$", 1024),
        (r"vocab_size$", 2**22),
        (r"horizon$|^chunk(_size)?$|^n_action_steps$", 4096),
        (r"^max_tokens$|^m(in|ax)_period$", 2**16),
        (_PICTURES, 4096),
        (rf"{_WIDTHS}|{_STEPS}", 2**16),
    )
)
"""Part of a key's name -> the largest number that it may give, the first that fits; far beyond every published
network: the largest of 2025 have 126 layers, widths of 18,432 and 262,144 words."""


def check_sizes(values: object, where: Path) -> None:
    """Raise `BadValue` for a number in a settings file, at any depth, that is beyond `MOST`, naming its key."""
    for key, number in _numbers(values):
        most = next((most for pattern, most in MOST if pattern.search(key)), None)
        if most is not None and not -most <= number <= most:
            raise BadValue(f"'{where}' gives {shown(key)} as {shown(number)}; a network may have at most {most}")


def check_positive(record: object, *, but: Container[str] = ()) -> None:
    """Raise `BadValue` for a number of a dataclass, nested ones included, that is not above 0; `but` may be 0."""
    assert is_dataclass(record)
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            check_positive(value)
        elif isinstance(value, int | float) and not (value > 0 or (value == 0 and field.name in but)):
            raise BadValue(f"{field.name} must be above 0, got {shown(value)}")


def _numbers(values: object) -> Iterator[tuple[str, float]]:
    # With the nearest key above it; not recursive, for what others wrote may be deep.
    left: list[tuple[str, Any]] = [("", values)]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += ((key, item) for item in value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value
