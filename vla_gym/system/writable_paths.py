"""Can a file, or a folder, be written where the user wants it? Asked before the work whose results go there."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from vla_gym.errors import BadValue


def check_destination(path: Path, *, suffix: str = "") -> Path:
    """`path` if a file that ends in `suffix` can be written there, else `BadValue`; nothing is made.

    Folders that are missing on the way to it are for the writer to make.
    """
    try:
        reason = _hindrance(path, suffix)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise BadValue(f"cannot write '{path}': {reason}")
    return path


def check_folder(path: Path, *, what: str, flag: str) -> Path:
    """`path` if it is a folder to write `what` in or can be made one, else `BadValue`; nothing is left there."""
    try:
        reason = _no_place(path)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise BadValue(f"cannot write {what} under '{path}': {reason}; give another {flag}")
    return path


def _hindrance(path: Path, suffix: str) -> str:
    """Why there cannot be a file; "" when there can."""
    if path.is_dir():
        return f"it is a folder; name a file in it, e.g. {path / 'results'}{suffix or '.json'}"
    if path.suffix.lower() != suffix and suffix:
        return f"its name must end in {suffix}, e.g. {path.with_suffix(suffix)}"
    if path.exists():
        return "" if os.access(path, os.W_OK) else "it is there and must not be written"
    return _no_place(path.absolute().parent)


def _no_place(wanted: Path) -> str:
    """Why there cannot be such a folder to write in; "" when there can."""
    folder = next(one for one in (wanted, *wanted.absolute().parents) if one.exists())
    if not folder.is_dir():
        return f"'{folder}' is a file, no folder"
    try:
        # Asking for permissions is not enough: a superuser has all of them, also in /proc.
        with TemporaryDirectory(dir=folder):
            return ""
    except OSError as error:
        return f"folder '{folder}' must not be written ({error.strerror})"
