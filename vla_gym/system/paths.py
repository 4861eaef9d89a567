"""The cache folder, files written whole, and checks that a place can be written before the work that ends there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return `$VLA_ZOO_CACHE`, else `$XDG_CACHE_HOME/vla-zoo`, else `~/.cache/vla-zoo`; it is not created here.

    Raises `BadValue` where none of them is known.
    """
    environ = os.environ if environ is None else environ
    if own := environ.get("VLA_ZOO_CACHE"):
        return Path(own).expanduser().absolute()
    try:
        return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "vla-zoo"
    except RuntimeError as error:
        raise BadValue(
            "no home folder is known for this user (HOME is not set): set VLA_ZOO_CACHE to a folder that can be written"
        ) from error


def check_writable(folder: Path, variable: str = "VLA_ZOO_CACHE") -> Path:
    """Create `folder` if it is missing and return it.

    Raises `BadValue`, which names `variable`, if files cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise BadValue(
            f"cannot write to {folder} ({error.strerror}): set {variable} to a folder that can be written to"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`.

    Raises `BadValue` where the folder cannot be written to or its file system has no locks.
    """
    check_writable(path.parent)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:  # NFS without a lock service, Lustre mounted without `flock`
            raise BadValue(
                f"cannot lock {path} ({error.strerror}): set VLA_ZOO_CACHE to a folder on a local disk"
            ) from error
        yield


def write_atomic(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Write a file that is either whole or absent, also when the process is killed or the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_hashed(file: Path, content: bytes) -> None:
    """Write `content` behind its hash, whole or not at all; `read_hashed` reads it."""
    write_atomic(file, content_hash(content).encode() + content)


def read_hashed(file: Path) -> bytes:
    """Return the content of a file of `write_hashed`; raise `FileNotFoundError` where it is gone or damaged."""
    data = file.read_bytes()
    length = len(content_hash(b""))
    if content_hash(data[length:]).encode() != data[:length]:
        raise FileNotFoundError(f"cached file {file} is damaged: its content is not what was written")
    return data[length:]


def anonymous_file(size: int) -> int:
    """Return the descriptor of `size` zero bytes without a name, in memory where the system offers that.

    So not even SIGKILL leaves them behind. The caller closes it.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("vla-gym", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


_SEPARATOR = b"\n#"
"""Between a JSON record and the hash of its bytes; JSON has no such line."""


def write_json(file: Path, values: Any) -> None:
    """Write a JSON file with the hash of its content, whole or not at all."""
    content = json.dumps(values).encode()
    write_atomic(file, content + _SEPARATOR + content_hash(content).encode())


def read_json(file: Path) -> Any:
    """Return the content of a cached JSON file, lists as tuples; raise `FileNotFoundError` where it is damaged."""
    content, _, wanted = file.read_bytes().rpartition(_SEPARATOR)
    if content_hash(content).encode() != wanted:
        raise FileNotFoundError(f"cached file {file} is damaged: its content is not what was written")
    return _tuples(json.loads(content))


def content_hash(data: bytes | bytearray | memoryview) -> str:
    """Return the hash by which cached content is known, 40 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def library_caches(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables that keep LIBERO's config and Numba's cache out of HOME; the folders are created.

    The user's own NUMBA_CACHE_DIR stays. LIBERO_CONFIG_PATH is always replaced: LIBERO asks questions on the
    terminal when its config is missing, and a config shared between installations points elsewhere.
    Raises `BadValue` for a missing folder that cannot be created; one filled before may be read-only.
    """
    environ = os.environ if environ is None else environ
    root = cache_dir(environ)
    own = environ.get("NUMBA_CACHE_DIR")
    config, numba = root / "libero-config", Path(own) if own else root / "numba" / _processor()
    for folder, variable in ((config, "VLA_ZOO_CACHE"), (numba, "NUMBA_CACHE_DIR" if own else "VLA_ZOO_CACHE")):
        if not folder.is_dir():
            check_writable(folder, variable)
    return {"LIBERO_CONFIG_PATH": str(config), "NUMBA_CACHE_DIR": str(numba)}


def _processor() -> str:
    """Return a hash of this machine's kind of processor.

    Numba keeps the code of all kinds in one folder, so that machines that share a cache would run each other's.
    """
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.is_file() else []
    kinds = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return content_hash("\n".join(kinds).encode())[:8]


def check_destination(path: Path, *, suffix: str = "") -> Path:
    """Return `path` if a file that ends in `suffix` can be written there, else raise `BadValue`; creates nothing.

    Missing parent folders are allowed: the writer creates them.
    """
    try:
        reason = _hindrance(path, suffix)
    except OSError as error:  # such as a name that is too long
        reason = str(error.strerror)
    if reason:
        raise BadValue(f"cannot write '{path}': {reason}")
    return path


def check_folder(path: Path, *, what: str, flag: str) -> Path:
    """Return `path` if `what` can be written in that folder, which may be missing, else raise `BadValue`."""
    if reason := _no_place(path):
        raise BadValue(f"cannot write {what} under '{path}': {reason}; give another {flag}")
    return path


def _hindrance(path: Path, suffix: str) -> str:
    if path.is_dir():
        return f"it is a folder; name a file in it, e.g. {path / 'results'}{suffix or '.json'}"
    if suffix and path.suffix.lower() != suffix:
        return f"its name must end in {suffix}, e.g. {path.with_suffix(suffix)}"
    if path.exists():
        return "" if os.access(path, os.W_OK) else "it is there and must not be written"
    return _no_place(path.absolute().parent)


def _no_place(wanted: Path) -> str:
    """Return the reason why a folder, which may be missing, cannot be written in, or ""."""
    try:
        folder = next(path for path in (wanted, *wanted.absolute().parents) if path.exists())
        if not folder.is_dir():
            return f"'{folder}' is a file, no folder"
        # Asking for permissions is not enough: a superuser has all of them, also in /proc.
        with tempfile.TemporaryDirectory(dir=folder):
            return ""
    except OSError as error:
        return f"the folder must not be written ({error.strerror})"
