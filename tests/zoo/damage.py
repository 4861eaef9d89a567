"""Damage to files as a random generator draws it: what disks, people and other programs leave."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ODD_VALUES: tuple[Any, ...] = (
    *(None, [], {}, "x", "", -1, 0, 1.5, 1e300, -1e300, 10**30, -(10**30), float("nan"), float("inf"), "../x", True),
    *([None], {"a": {}}, [[[[]]]], "y" * 5000, "é\u202e\x1b[31m", ["x"] * 50, {"__class__": "x"}, {"schedule": "x"}),
    *("%s{0}", "/etc/passwd", "null", "1", [1, 2, 3], [-1], {"0": 0}),
)
ODD_TEXTS = (
    *("", "null", "[1, 2]", "[]", "{}", "5", '"x"', "&a [*a]", "[" * 3000, '{"a":' * 3000, "9" * 5000, "\x1b[2J"),
    *("!!python/name:os.system", "{a: 1, a: 2}", "\n" * 100, "\0" * 100, "\ufeff{}", "NaN", '{"a": NaN}', "- - - -"),
    *("#", "a,b,c\n1,2,3\n", "? x", "%YAML 9.9\n---\n", "<<: x", "2020-13-45: 1", "~: 1", "version https://git-lfs\n"),
)
ODD_BYTES = (
    b"\xff\xfe\xfd",
    b"PK\x03\x04",
    b"PAR1PAR1",
    b"\x80\x04.",
    b"\x89PNG\r\n\x1a\n",
    b"\xff" * 64,
    b"\x93NUMPY",
)
KINDS = (
    *("cut", "flip", "text", "bytes", "value", "value", "value", "zeros", "doubled", "grown"),
    *("folder", "missing", "pipe", "loop", "dangling", "swapped"),
)
"""How a file can be damaged; the last two lines' are no contents."""


@contextlib.contextmanager
def damage(folder: Path, draw: random.Random) -> Iterator[str]:
    """Context manager in which one file of a folder is damaged; yields which and how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file, kind = draw.choice(files), draw.choice(KINDS)
    content = file.read_bytes()
    other = draw.choice(files).read_bytes()
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind in ("loop", "dangling"):
        file.symlink_to(file.name if kind == "loop" else "no-such-file")
    elif kind != "missing":
        file.write_bytes(other if kind == "swapped" else damaged(content, draw, kind))
    try:
        yield f"{file.relative_to(folder)}: {kind}"
    finally:
        if file.is_dir():
            shutil.rmtree(file)
        file.unlink(missing_ok=True)
        file.write_bytes(content)


def damaged(content: bytes, draw: random.Random, kind: str) -> bytes:
    """A file's content, damaged in the named way."""
    place = draw.randrange(len(content) or 1)
    if kind == "value":
        return other_value(content, draw)
    if kind in ("cut", "flip", "grown") and content:
        flipped = bytes([content[place] ^ (1 << draw.randrange(8))])
        grown = content[:place] + draw.randbytes(3) + content[place:]
        return {"cut": content[:place], "flip": content[:place] + flipped + content[place + 1 :]}.get(kind, grown)
    whole = {"zeros": bytes(len(content)), "doubled": content + content, "bytes": draw.choice(ODD_BYTES)}
    return whole.get(kind, draw.choice(ODD_TEXTS).encode())


def other_value(content: bytes, draw: random.Random) -> bytes:
    """A file's content with one value in it, at some depth, replaced or left out."""
    if content[:2] == b"PK":
        return _other_array(content, draw)
    length = int.from_bytes(content[:8], "little")
    if content[8:9] == b"{" and length < len(content):  # safetensors: a JSON header
        header = json.dumps(replaced(json.loads(content[8 : 8 + length]), draw)).encode()
        return len(header).to_bytes(8, "little") + header + content[8 + length :]
    with contextlib.suppress(ValueError, yaml.YAMLError):
        lines = content.decode().splitlines()
        if len(lines) > 1 and all(line.startswith("{") for line in lines):  # JSON lines
            place = draw.randrange(len(lines))
            lines[place] = json.dumps(replaced(json.loads(lines[place]), draw))
            return "\n".join([*lines, ""]).encode()
        value = yaml.safe_load(content.decode())
        if isinstance(value, dict):
            return json.dumps(replaced(value, draw)).encode()
        if "," in lines[-1]:  # CSV
            cells = lines[place := draw.randrange(len(lines))].split(",")
            cells[draw.randrange(len(cells))] = str(draw.choice(ODD_VALUES))
            return "\n".join([*lines[:place], ",".join(cells), *lines[place + 1 :], ""]).encode()
    return content[1:]


def _other_array(content: bytes, draw: random.Random) -> bytes:
    odd = (
        *(np.array("x"), np.array([]), np.zeros((1, 0)), np.array(["a", "b"]), np.array([np.nan, np.inf])),
        *(np.array([-1, 2**62]), np.zeros((2, 2, 2)), np.array([[True]]), np.array(5), np.zeros(3, complex)),
    )
    with np.load(io.BytesIO(content)) as opened:
        arrays = dict(opened)
    name = draw.choice([*arrays])
    if draw.random() < 0.3:
        del arrays[name]
    else:
        arrays[name] = draw.choice(odd)
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def replaced(value: Any, draw: random.Random) -> Any:
    """`value` with one part of it, at some depth, replaced, added or left out."""
    if isinstance(value, list) and value and draw.random() < 0.7:
        place = draw.randrange(len(value))
        return [*value[:place], replaced(value[place], draw), *value[place + 1 :]]
    if not isinstance(value, Mapping) or not value:
        return draw.choice(ODD_VALUES)
    key = draw.choice([*value])
    part = value[key]
    if isinstance(part, dict | list) and part and draw.random() < 0.6:
        return {**value, key: replaced(part, draw)}
    chance = draw.random()
    if chance < 0.6:
        return {**value, key: draw.choice(ODD_VALUES)}
    if chance < 0.7:
        return {**value, draw.choice(["", "no such", "../x", "\x1b", "k" * 5000]): draw.choice(ODD_VALUES)}
    return {name: kept for name, kept in value.items() if name != key}
