"""Atomic files and folders, JSON records, paths in a shell's words, and folders that travel inside the wheel."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vla_gym import reading
from vla_gym.errors import BadValue, VLAZooError, os_reason, shown


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, which replaces `path` at the end unless the body raises."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; line ends stay as they are."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder beside `folder`, then put it there in one step, on the disk."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent / f".{folder.name}.partial-{os.getpid()}"
    replaced = folder.parent / f".{folder.name}.replaced-{os.getpid()}"
    for leftover in (partial, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        write(partial)
        for file in partial.iterdir():
            _sync(file)
        _sync(partial)
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_MEND = "Restore it, or move it away to do without what it holds"


def damaged(file: Path, reason: object) -> BadValue:
    """Return the error for a run's file that cannot be read or has the wrong content."""
    if isinstance(reason, OSError):
        return BadValue(f"'{file}' cannot be read: {os_reason(reason)}")
    cause = " ".join(str(reason).split()).rstrip(".")
    return BadValue(f"'{file}' is damaged: {cause}. {_MEND}")


@contextmanager
def content_of(file: Path) -> Iterator[None]:
    """Context manager in which whatever the wrong content of a run's file raises becomes the error of `damaged`."""
    try:
        yield
    except VLAZooError:
        raise
    except KeyError as error:
        raise damaged(file, f"it lacks {shown(error.args[0] if error.args else error)}") from error
    except (OSError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(file, error if isinstance(error, OSError) else f"{type(error).__name__}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a run's file; raises `BadValue` where there is none."""
    try:
        return reading.read_json_object(path)
    except BadValue as error:
        raise BadValue(f"{error}. {_MEND}") from error


def quoted(path: str | Path) -> str:
    """`path` as one word of a command line, for commands in messages."""
    return shlex.quote(str(path))


def packaged_folder(name: str) -> Path:
    """`hyperparams/`: `zoo/_<name>` of an installed wheel, else the repository's beside the packages."""
    package = Path(__file__).parent
    inside = package / f"_{name}"
    return inside if inside.is_dir() else package.parent / name
