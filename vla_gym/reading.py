"""Files that others wrote: text and JSON within limits, names that stay inside their folder.

Everything a user, a dataset or the Hub brings is read here (YAML: `zoo.yaml_text`), so that a damaged or hostile file
ends in one `BadValue` that names it: whatever its decoder raises, however deep or large it is, a pipe or a device.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from vla_gym.errors import BadValue, os_reason, shown

MOST_BYTES = 256 * 2**20
"""Largest text file that is read; a run of 10^7 simulator steps keeps less than a tenth of it in each of its files."""

MOST_VALUES = 5 * 10**6
"""Most values in a JSON text, each of which takes up to a hundred bytes of memory, whatever it takes in the file."""


def user_path(text: str) -> Path:
    """Return the path that a user names, `~` written out; raises `BadValue` for another user's who is not there."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise BadValue(f"{shown(text)} is no path: {error}") from error


def read_text(path: Path, *, most: int = MOST_BYTES) -> str:
    """Return the UTF-8 text of a regular file of at most `most` bytes; raises `BadValue` where it is none."""
    return decoded(read_bytes(path, most=most), path)


def read_bytes(path: Path, *, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raises `BadValue` where it is none.

    A pipe or a device is refused before it is opened: it may never end.
    """
    size, data = size_of(path), b""
    if size <= most:
        try:
            with path.open("rb") as stream:
                data = stream.read(most + 1)  # of files in /proc the size is 0
        except OSError as error:
            raise BadValue(f"cannot read '{path}': {os_reason(error)}") from error
    if (size := max(size, len(data))) > most:
        raise BadValue(f"'{path}' has {size} bytes, at most {most} are read")
    return data


def size_of(path: Path) -> int:
    """Return the bytes of a regular file, which is not opened; raises `BadValue` for a folder, a pipe, a device."""
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:  # a NUL in the name
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise BadValue(f"cannot read {shown(str(path))}: {reason}") from error
    if not stat.S_ISREG(facts.st_mode):
        kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "no regular file, but a pipe or a device"
        raise BadValue(f"'{path}' is {kind}; a file is needed")
    return facts.st_size


def check_no_pipe(path: Path) -> None:
    """Raise `BadValue` for a pipe, a device or a folder, before something opens it; a missing file is left to that."""
    if path.exists():
        size_of(path)


def decoded(data: bytes, where: object) -> str:
    """Return UTF-8 `data` as text; raises `BadValue` for other bytes, naming `where` they come from."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"'{where}' is no UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from error


def parse_json(text: str, where: object) -> Any:
    """Return the JSON value in `text`; raises `BadValue` for anything else, naming `where` it comes from."""
    values = text.count(",") + text.count("[") + text.count("{")  # those in quoted texts counted as well
    if values > MOST_VALUES:
        raise BadValue(f"'{where}' holds about {values} values, at most {MOST_VALUES} are read")
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:  # also of a number with thousands of digits
        deep = isinstance(error, RecursionError)
        reason = "its lists and objects are nested too deep" if deep else " ".join(str(error).split())
        raise BadValue(f"'{where}' is not valid JSON: {reason}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raises `BadValue` where there is none."""
    return as_object(parse_json(read_text(path), path), path)


def as_object(values: Any, where: object) -> dict[str, Any]:
    """Return a JSON value that is an object; raises `BadValue` for another, naming `where` it comes from."""
    if not isinstance(values, dict):
        raise BadValue(f"'{where}' must hold a JSON object, got {type(values).__name__}")
    return values


def inside(root: Path, name: object, where: object) -> Path:
    """Return `root / name` for a relative name that a file holds; raises `BadValue` for one that leaves `root`.

    `where` names the file. Links on the way may not lead out either, except from the Hub's cache, whose files are
    links to the blobs beside them.
    """
    path = PurePosixPath(name) if isinstance(name, str) else None
    if not name or path is None or path.is_absolute() or ".." in path.parts or "\0" in str(name):
        raise BadValue(f"'{where}' names {shown(name)}, which is no path inside '{root}'")
    found = root / path
    real, homes = os.path.realpath(found), [os.path.realpath(root)]
    if snapshots := next((folder for folder in (root, *root.absolute().parents) if folder.name == "snapshots"), None):
        homes.append(os.path.realpath(snapshots.parent / "blobs"))
    if not any(os.path.commonpath([real, each]) == each for each in homes):
        raise BadValue(f"'{where}' names {shown(name)}, which links to a place outside '{root}'")
    return found


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; 0.6 s of CPU for a GB where it was measured.

    Raises `BadValue` for what is no file: a pipe would be waited for, a device may never end.
    """
    check_no_pipe(path)
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
