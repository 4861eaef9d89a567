"""The certificate of a policy folder: what it held when it was written, and the base model of an adapter.

A difference means damage or a mixture, not forgery: who can write a folder can write its certificate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.reading import check_no_pipe, file_sha256, read_json_object
from vla_policies.checkpoint_io.folder import write_json
from vla_policies.checkpoint_io.json_records import from_json, to_json

CERTIFICATE_FILE = "certificate.json"
WHOLE_BYTES = 2**30
"""Largest file of which opening a folder reads every byte; 0.6 s of CPU. Of larger ones it reads samples."""
_SAMPLES = 64
_SAMPLE_BYTES = 2**16
_TENSORS = ("*.safetensors", "action_head--*.pt", "proprio_projector--*.pt")
_TEXTS = ("config.json", "tokenizer*.json", "vocab.json", "added_tokens.json", "*processor*.json", "*statistics*.json")
"""Files that decide what a model computes, of those that a download brings."""
_NEXT = (
    "Write or download the folder again; to open it as it is: policy_kwargs verify: false "
    "(-params 'policy_kwargs:{verify: false}')"
)


@dataclass(frozen=True)
class Hashes:
    """Of one file."""

    sha256: str
    """Of every byte, hexadecimal."""
    samples: str
    """Of size, beginning, end and 64 KiB at each of 64 places between; tells other weights, not a single bit."""


@dataclass(frozen=True)
class Certificate:
    """What a policy folder held when it was written."""

    files: Mapping[str, Hashes]
    """Name -> hashes."""
    base: str | None = None
    """`fingerprint` of the model that an adapter belongs to."""
    canary: tuple[float, ...] | None = None
    """`vla_policies.canary.canary_numbers`; None where they were not computed."""


def hashes_of(path: Path) -> Hashes:
    """Both hashes of a file."""
    return Hashes(file_sha256(path), samples_sha256(path))


def samples_sha256(path: Path) -> str:
    """SHA-256 over a file's size and up to 64 stretches of 64 KiB, evenly spread from its first byte to its last."""
    check_no_pipe(path)
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "big"))
    last = max(0, size - _SAMPLE_BYTES)
    with path.open("rb") as file:
        for place in sorted({last * number // (_SAMPLES - 1) for number in range(_SAMPLES)}):
            file.seek(place)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def fingerprint(folder: Path) -> str:
    """SHA-256 that tells one model from another: of the folder's settings, tokenizer and statistics whole, and
    of samples of its weights; the names of files count, the folder's own does not."""
    digest = hashlib.sha256()
    for patterns, hash_of in ((_TEXTS, file_sha256), (_TENSORS, samples_sha256)):
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            if path.is_file() and path.name != CERTIFICATE_FILE:
                digest.update(f"{hash_of(path)}  {path.name}\n".encode())
    return digest.hexdigest()


@contextmanager
def certified(folder: Path, base: str | None = None, canary: tuple[float, ...] | None = None) -> Iterator[None]:
    """Context manager whose body writes a policy into `folder`; certifies each file that it wrote or changed.

    A file that was certified before and is not touched stays certified, such as the weights beside which an adapter is
    written.
    """
    earlier = Certificate({})
    with suppress(VLAZooError):  # a damaged one is replaced
        earlier = read_certificate(folder) or earlier
    (folder / CERTIFICATE_FILE).unlink(missing_ok=True)
    before = _times(folder)
    yield
    after = _times(folder)
    kept = {name: hashes for name, hashes in earlier.files.items() if after.get(name, ()) == before.get(name)}
    written = {name: hashes_of(folder / name) for name, times in after.items() if before.get(name) != times}
    write_certificate(folder, Certificate(dict(sorted({**kept, **written}.items())), base, canary))


def write_certificate(folder: Path, certificate: Certificate) -> None:
    """Write the certificate of a folder."""
    write_json(folder / CERTIFICATE_FILE, to_json(certificate))


def read_certificate(folder: Path) -> Certificate | None:
    """The folder's certificate, None where it has none; raises `BadValue` for one that is damaged."""
    path = folder / CERTIFICATE_FILE
    if not path.is_file():
        return None
    certificate = from_json(Certificate, read_json_object(path), str(path))
    for name in certificate.files:
        if Path(name).name != name:
            raise BadValue(f"{path} names a file outside its folder: '{name}'")
    return certificate


def recertified(folder: Path, changed: Mapping[str, Path]) -> Certificate:
    """The folder's certificate with the hashes of the files that take the places of some of its own."""
    certificate = read_certificate(folder) or Certificate({})
    own = {name: hashes_of(path) for name, path in changed.items()}
    return replace(certificate, files={**certificate.files, **own})


def check_certificate(folder: Path, *, whole: bool = False) -> Certificate | None:
    """Compare a folder with its certificate, and return that; None where it has none.

    Raises `BadValue` that names the file. Of files beyond `WHOLE_BYTES` samples are read, or with `whole` every byte.
    """
    certificate = read_certificate(folder)
    for name, hashes in certificate.files.items() if certificate is not None else ():
        path = folder / name
        if not path.is_file():
            raise BadValue(f"policy folder '{folder}' lacks {name}, which {CERTIFICATE_FILE} lists. {_NEXT}")
        read_whole = whole or path.stat().st_size <= WHOLE_BYTES
        # The samples first: they tell another size without reading all of it.
        if samples_sha256(path) != hashes.samples or (read_whole and file_sha256(path) != hashes.sha256):
            raise BadValue(
                f"policy folder '{folder}' is not as it was written: {name} has other content than {CERTIFICATE_FILE} "
                f"says (SHA-256). {_NEXT}"
            )
    return certificate


def check_base(folder: Path, certificate: Certificate, base: Path) -> None:
    """Raise `BadValue` unless `base` is the model that the adapter in `folder` was trained on."""
    if certificate.base is not None and fingerprint(base) != certificate.base:
        raise BadValue(
            f"the adapter in '{folder}' was trained on another model than '{base}': weights, tokenizer, statistics or "
            f"settings differ. Name the right one as policy_kwargs base, or open it as it is with policy_kwargs "
            "verify: false"
        )


def _times(folder: Path) -> dict[str, tuple[int, int]]:
    """File -> when it was written, and its number in the file system, which a replaced file changes."""
    found = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    return {path.name: ((facts := path.stat()).st_mtime_ns, facts.st_ino) for path in found}
