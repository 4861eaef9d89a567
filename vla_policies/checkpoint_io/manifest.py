"""The manifest of a policy folder: the SHA-256 of each file that was written, and the base model of an adapter.

A difference means damage or a mixture, not forgery: who can write a folder can write its manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vla_gym.errors import BadValue, VLAZooError, shown
from vla_gym.reading import check_no_pipe, file_sha256, read_json_object
from vla_policies.checkpoint_io.folder import write_json
from vla_policies.checkpoint_io.json_records import as_annotated, from_json, to_json

MANIFEST_FILE = "manifest.json"
FORMER_FILE = "certificate.json"
"""Manifest of folders that earlier versions wrote: {"files": {name: {"sha256": ..., "samples": ...}}, ...}."""
_SAMPLES = 64
_SAMPLE_BYTES = 2**16
TENSORS = ("*.safetensors", "action_head--*.pt", "proprio_projector--*.pt")
"""Files of weights, the heads of OpenVLA-OFT's makers included."""
_TEXTS = ("config.json", "tokenizer*.json", "vocab.json", "added_tokens.json", "*processor*.json", "*statistics*.json")
"""Files that decide what a model computes, of those that a download brings."""


@dataclass(frozen=True)
class Manifest:
    """The files of a policy folder when it was written."""

    files: Mapping[str, str]
    """Name -> SHA-256 of its content, hexadecimal."""
    base: str | None = None
    """`model_sha256` of the model that an adapter belongs to."""

    def __post_init__(self) -> None:
        """Raise `BadValue` for a name that is no file's of the folder itself."""
        for name in self.files:
            if Path(name).name != name:
                raise BadValue(f"a manifest names a file outside its folder: {shown(name)}")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the folder's manifest, None where it has none; raises `BadValue` for one that is damaged."""
    path, former = folder / MANIFEST_FILE, folder / FORMER_FILE
    if path.is_file():
        return from_json(Manifest, read_json_object(path), str(path))
    if former.is_file():
        values = read_json_object(former)
        files = as_annotated(Mapping[str, Mapping[str, str]], values.get("files"), f"files of '{former}'")
        return Manifest({name: hashes.get("sha256", "") for name, hashes in files.items()}, values.get("base"))
    return None


def check_manifest(
    folder: Path, manifest: Manifest, *, known: Mapping[Path, str] | None = None, instead: str = ""
) -> None:
    """Raise `BadValue` that names a file of the folder which is missing or has another content than the manifest says.

    Every byte is read, 0.6 s of CPU for a GB where it was measured, but of files whose SHA-256 is `known`. `instead`
    says what else the user can do.
    """
    for name, sha256 in manifest.files.items():
        path = folder / name
        found = ((known or {}).get(path) or file_sha256(path)) if path.is_file() else None
        if found != sha256:
            fault = f"it lacks {name}, which" if found is None else f"{name} has other content than"
            raise BadValue(
                f"'{folder}' is damaged, or was replaced while it was opened: {fault} its manifest lists (SHA-256)"
                f"{instead}"
            )


def check_base(folder: Path, manifest: Manifest, base: Path) -> None:
    """Raise `BadValue` unless `base` is the model that the adapter in `folder` was trained on."""
    if manifest.base is not None and model_sha256(base) != manifest.base:
        raise BadValue(
            f"the adapter in '{folder}' was trained on another model than '{base}': weights, tokenizer, statistics or "
            "settings differ. Name the right one as policy_kwargs base, or open it as it is with policy_kwargs "
            "verify: false"
        )


@contextmanager
def writing_manifest(folder: Path, base: str | None = None) -> Iterator[None]:
    """Context manager whose body writes a policy into `folder`; the manifest lists each file that it wrote.

    Files that an earlier manifest lists stay listed, such as the weights beside which an adapter is written.
    """
    earlier: Manifest | None = None
    with suppress(VLAZooError):  # a damaged one is replaced
        earlier = read_manifest(folder)
    for name in (MANIFEST_FILE, FORMER_FILE):
        (folder / name).unlink(missing_ok=True)
    before = _versions(folder)
    yield
    after = _versions(folder)
    kept = {name: sha256 for name, sha256 in (earlier.files if earlier else {}).items() if name in after}
    written = {name: file_sha256(folder / name) for name, version in after.items() if before.get(name) != version}
    write_json(folder / MANIFEST_FILE, to_json(Manifest(dict(sorted({**kept, **written}.items())), base)))


def extend_manifest(folder: Path, names: Iterable[str], *, known: Mapping[str, str] | None = None) -> None:
    """List more files of the folder in its manifest, or list them anew; of some names the SHA-256 may be `known`."""
    manifest, known = read_manifest(folder) or Manifest({}), known or {}
    files = {**manifest.files, **{name: known.get(name) or file_sha256(folder / name) for name in names}}
    write_json(folder / MANIFEST_FILE, to_json(Manifest(dict(sorted(files.items())), manifest.base)))


def model_sha256(folder: Path, known: Mapping[Path, str] | None = None) -> str:
    """Return a hash that tells one model from another: of its settings, tokenizer and statistics, and of samples of
    its weights. Names of files count, the folder's own does not. Files whose SHA-256 is `known` are not read again."""
    digest = hashlib.sha256()

    def hash_of_text(path: Path) -> str:
        return (known or {}).get(path) or file_sha256(path)

    for patterns, hash_of in ((_TEXTS, hash_of_text), (TENSORS, _samples_sha256)):
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            if path.is_file():
                digest.update(f"{hash_of(path)}  {path.name}\n".encode())
    return digest.hexdigest()


def _samples_sha256(path: Path) -> str:
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


def _versions(folder: Path) -> dict[str, tuple[int, int]]:
    # When it was written, and its number in the file system, which a replaced file changes.
    found = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    return {path.name: ((facts := path.stat()).st_mtime_ns, facts.st_ino) for path in found}
