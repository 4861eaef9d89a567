"""The cache folder: compiled scenes, other libraries' configs and caches."""

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

CPU_INFO = Path("/proc/cpuinfo")
"""Linux's description of the processors."""


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`$VLA_ZOO_CACHE`, else `$XDG_CACHE_HOME/vla-zoo`, else `~/.cache/vla-zoo`; not created here.

    Raises `BadValue` where none of them is known.
    """
    environ = os.environ if environ is None else environ
    own = environ.get("VLA_ZOO_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser().absolute() if base else _home() / ".cache") / "vla-zoo"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise BadValue(
            "no home folder is known for this user (HOME is not set): set VLA_ZOO_CACHE to a folder that can be written"
        ) from error


def check_writable(folder: Path, variable: str = "VLA_ZOO_CACHE") -> Path:
    """Create `folder` if it is missing and return it; raise `BadValue`, which names `variable`, if files cannot be
    written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise BadValue(
            f"cannot write to {folder} ({error.strerror}): set {variable} to a folder that can be written to"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Context manager that holds the lock file `path`; its descriptor holds the lock too where a child inherits it.

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
        yield stream.fileno()


def write_atomic(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Write a file that is either whole or absent, also when the process is killed or the machine stops.

    Who may read it is the user's umask to say: a cache may be shared.
    """
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


_SEAL = b"\n#"
"""Between a record and the hash of its bytes, on a line of its own; JSON has no such line."""


def write_json(file: Path, values: Any) -> None:
    """Write a JSON file with the hash of its content, whole or not at all."""
    content = json.dumps(values).encode()
    write_atomic(file, content + _SEAL + content_hash(content).encode())


def read_json(file: Path) -> Any:
    """Return the content of a cached JSON file, lists as tuples; raise `FileNotFoundError` where it is damaged.

    Files of version 0.1 have no hash of their content.
    """
    content, seal, wanted = file.read_bytes().rpartition(_SEAL)
    if not seal:
        content = wanted
    elif content_hash(content).encode() != wanted:
        raise FileNotFoundError(f"cached file {file} is damaged: its content is not what was written")
    try:
        return _tuples(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise FileNotFoundError(f"cached file {file} is cut short: {error}") from error


def content_hash(data: bytes | bytearray | memoryview) -> str:
    """Return the hash by which cached content is known, 40 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _processor() -> str:
    """Name of this machine's kind of processor, which other machines that share the cache may not have.

    Numba keeps the code of all kinds in one folder, under an index that two machines may overwrite for each other: then
    one runs the code of the other.
    """
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.is_file() else []
    kinds = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return content_hash("\n".join(kinds).encode())[:8]


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def library_caches(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that keep LIBERO's config and Numba's cache out of HOME; the folders are created.

    The user's own NUMBA_CACHE_DIR stays. LIBERO_CONFIG_PATH is always replaced: LIBERO asks questions on the
    terminal when its config is missing, and a config shared between installations points elsewhere.
    Raises `BadValue` for a missing folder that cannot be created; one filled before may be read-only.
    """
    environ = os.environ if environ is None else environ
    root = cache_dir(environ)
    own = environ.get("NUMBA_CACHE_DIR")
    config, numba = root / "libero-config", Path(own) if own else root / "numba" / _processor()
    for folder, variable in (
        (config, "VLA_ZOO_CACHE"),
        (numba, "NUMBA_CACHE_DIR" if own else "VLA_ZOO_CACHE"),
    ):
        if not folder.is_dir():
            check_writable(folder, variable)
    return {"LIBERO_CONFIG_PATH": str(config), "NUMBA_CACHE_DIR": str(numba)}
