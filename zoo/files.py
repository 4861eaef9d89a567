"""Atomic files and folders, JSON records, paths in a shell's words, and folders that travel inside the wheel."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vla_gym import reading
from vla_gym.errors import BadValue, VLAZooError, os_reason, shown

_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.(?P<kind>partial|replaced)-(?:(?P<host>\w+)-)?(?P<pid>\d{1,10})(?:-[0-9a-f]{8})?"
)
"""Names of what is being written, and of what is being replaced, by which process of which machine."""
_HOST = re.sub(r"[^\w]", "_", platform.node()) or "here"


def _temporary(path: Path, kind: str) -> Path:
    # Never used before: NFS keeps a folder of which another process reads a file.
    return path.with_name(f".{path.name}.{kind}-{_HOST}-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, which replaces `path` at the end unless the body raises.

    A device or a pipe, such as /dev/null, is written to and stays what it is. An `OSError` of the body (a full disk)
    names `path`.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    partial = _temporary(path, "partial")
    try:
        with naming(path, partial):
            yield partial
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path, partial: Path) -> Iterator[None]:
    """Context manager that names `path` in errors of the system that name no file or one of `partial`, which stands in
    for it, and in those of safetensors."""
    try:
        yield
    except OSError as error:
        hidden = error.filename is None or Path(str(error.filename)).is_relative_to(partial)
        if hidden and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except Exception as error:
        # Libraries not written in Python say it in words: "No space left on device (os error 28)".
        if said := re.search(r"\(os error (\d{1,4})\)", str(error)):
            raise OSError(int(said[1]), os.strerror(int(said[1])), str(path)) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; line ends stay as they are."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder beside `folder`, then put it there in one step, on the disk.

    Whatever kills the process leaves `folder` as it was or as it is to be: where the system cannot exchange two
    folders in one step, `recover_folders` puts the former one back.
    """
    partial = new_folder(folder)
    try:
        with naming(folder, partial):
            write(partial)
            put_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def new_folder(folder: Path) -> Path:
    """Make a temporary folder beside `folder`, for `put_folder`; return it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    recover_folders(folder.parent)
    partial = _temporary(folder, "partial")
    with naming(folder, partial):
        partial.mkdir()
    return partial


def put_folder(partial: Path, folder: Path) -> None:
    """Put a filled temporary folder in the place of `folder`; what was there may be left under the temporary name."""
    replaced = _temporary(folder, "replaced")
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)
    if not folder.exists():
        partial.rename(folder)
    elif not _exchange(partial, folder):
        folder.rename(replaced)
        partial.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step: whatever kills the process, what bears its name is whole."""
    partial = _temporary(folder, "partial")
    folder.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, as Linux can on most file systems; return whether it was done."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    return rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0


def recover_folders(parent: Path, *, alone: bool = False) -> None:
    """Put back what a process that was killed had set aside in `parent`, and remove what it had half written.

    Only of processes of this machine that are gone; with `alone`, where a lock keeps other processes from writing
    folders in `parent`, every such folder. Nothing happens where `parent` cannot be written.
    """
    with suppress(OSError):
        for entry in sorted(parent.iterdir()):
            found = _TEMPORARY.fullmatch(entry.name)
            if found is None or not ((alone and entry.is_dir()) or _is_gone(found)):
                continue
            with suppress(OSError):
                if found["kind"] == "replaced" and not (parent / found["name"]).exists():
                    entry.rename(parent / found["name"])
                elif entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()


def lock(handle: int, taken: str) -> bool:
    """Lock an open file or folder until it is closed; raise `BadValue` of `taken` where another process has it locked.

    Returns whether the file system has locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadValue(taken) from error
    except OSError:
        return False
    return True


def missing_folders(folder: Path) -> list[Path]:
    """Return the missing ones of a folder and its ancestors, outermost last."""
    return [path for path in (folder, *folder.absolute().parents) if not path.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, up to the first that holds something or is gone."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _is_gone(found: re.Match[str]) -> bool:
    """Whether the process that made a temporary name was one of this machine, and has ended."""
    if (found["host"] or _HOST) != _HOST:
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass  # another user's
    return False


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
    """Return `path` as one word of a command line, for commands in messages."""
    return shlex.quote(str(path))


def packaged_folder(name: str) -> Path:
    """Return a folder of data such as hyperparams/: `zoo/_<name>` of a wheel, else the repository's."""
    package = Path(__file__).parent
    inside = package / f"_{name}"
    return inside if inside.is_dir() else package.parent / name
