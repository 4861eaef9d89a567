"""Checks that a file or a folder can be written, before the work whose results go there."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from vla_gym.errors import BadValue


def check_destination(path: Path, *, suffix: str = "") -> Path:
    """Return `path` if a file that ends in `suffix` can be written there, else raise `BadValue`; creates nothing.

    Missing parent folders are allowed: the writer creates them.
    """
    try:
        reason = _hindrance(path, suffix)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise BadValue(f"cannot write '{path}': {reason}")
    return path


def check_folder(path: Path, *, what: str, flag: str) -> Path:
    """Return `path` if `what` can be written in that folder, which may be missing, else raise `BadValue`."""
    try:
        reason = _no_place(path)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise BadValue(f"cannot write {what} under '{path}': {reason}; give another {flag}")
    return path


def _hindrance(path: Path, suffix: str) -> str:
    """Reason why the file cannot be written, or ""."""
    if path.is_dir():
        return f"it is a folder; name a file in it, e.g. {path / 'results'}{suffix or '.json'}"
    if not path.name.strip():
        return "its name is blank"
    if path.suffix.lower() != suffix and suffix:
        return f"its name must end in {suffix}, e.g. {path.with_suffix(suffix)}"
    if path.exists():
        return "" if os.access(path, os.W_OK) else "it is there and must not be written"
    return _no_place(path.absolute().parent)


def _no_place(wanted: Path) -> str:
    """Reason why the folder cannot be written in, or ""."""
    folder = next(path for path in (wanted, *wanted.absolute().parents) if path.exists() or path.is_symlink())
    if not folder.exists():
        return f"'{folder}' is a link that leads nowhere"
    if not folder.is_dir():
        return f"'{folder}' is a file, no folder"
    try:
        # Asking for permissions is not enough: a superuser has all of them, also in /proc.
        with TemporaryDirectory(dir=folder):
            return ""
    except OSError as error:
        return f"folder '{folder}' must not be written ({error.strerror})"
