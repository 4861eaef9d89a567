"""Checkpoint folders: JSON configs and weights in safetensors (one file or shards) or torch's own `.pt`.

Everything is strict: a missing file or shard, a truncated file, a tensor that is missing, left over or of another
shape raises `BadValue` in one line that names it. Weights never stay at their random values in silence. `.pt` files
are read with `weights_only=True`, so nothing is unpickled but tensors. Files are written under a temporary name until
they are complete.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vla_gym.errors import BadValue, shown
from vla_gym.reading import check_no_pipe
from vla_policies.checkpoint_io.folder import (
    CONFIG_FILE,
    INDEX_FILE,
    WEIGHTS_FILE,
    read_once,
    require_file,
    weight_files,
    write_json,
)

SHARD_BYTES = 5 * 10**9
"""Largest file that `write_tensors` makes, as on the Hub."""
Tensors = Mapping[str, Tensor]
_DEFERRED: ContextVar[list[tuple[Path, Tensors]] | None] = ContextVar("deferred", default=None)
_LFS_POINTER = b"version https://git-lfs"
_SHARDS = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def write_checkpoint(folder: Path, config: Mapping[str, Any], module: nn.Module) -> None:
    """Write `model.safetensors`, then `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS_FILE, module.state_dict())
    write_json(folder / CONFIG_FILE, config)


def load_weights(
    folder: Path, module: nn.Module, *, but: Callable[[Mapping[str, Tensor]], tuple[str, ...]] = lambda _: ()
) -> None:
    """Fill `module` from the folder's `model.safetensors`, every tensor and no other.

    `but` takes the file's tensors, and returns the prefixes of parts that stay as they are.
    """
    path = require_file(folder, WEIGHTS_FILE)
    tensors = read_safetensors(path)
    kept = but(tensors)
    own = {name: tensor for name, tensor in module.state_dict().items() if name.startswith(kept)}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(kept)} | own
    check_tensors(path, tensors, module.state_dict())
    module.load_state_dict(tensors, strict=True)


def read_shapes(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of the folder on the meta device, which has no memory: only the files' headers are read."""
    with torch.device("meta"):
        headers = [read_once(path, read_safetensors) for path in weight_files(folder)]
    return {name: tensor for header in headers for name, tensor in header.items()}


def read_safetensors(
    path: Path, *, skip: Callable[[str], bool] | None = None, finite: bool = True
) -> dict[str, Tensor]:
    """Return the tensors of one file but those that `skip` is true of; where they must be `finite`, raises for one
    that is not: every decision would be nonsense. Where the default device is meta, only the header is read."""
    check_no_pipe(path)
    _check_fetched(path)
    header_only = torch.get_default_device().type == "meta"
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {
                name: torch.empty(file.get_slice(name).get_shape()) if header_only else file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118
                if skip is None or not skip(name)
            }
    except (SafetensorError, OSError) as error:
        raise BadValue(f"'{path}' cannot be read as safetensors: {error}") from error
    if finite:
        check_finite(path, tensors)
    return tensors


def _check_fetched(path: Path) -> None:
    """Raise `BadValue` for the pointer that `git clone` leaves without Git LFS."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise BadValue(
                f"'{path}' is no weights but a pointer of Git LFS: run git lfs pull in its folder, or hf download"
            )


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise `BadValue` where a tensor of a file holds NaN or infinity.

    Each is summed once, without a copy: a sum is finite unless a part is not (or the parts are beyond 1e30).
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.device.type != "meta":
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            if not torch.isfinite(tensor.sum(dtype=wide)) and not torch.isfinite(tensor).all():
                raise BadValue(f"'{path}' is damaged: its tensor '{name}' holds numbers that are not finite")


def read_tensors(folder: Path, *, skip: Callable[[str], bool] | None = None, finite: bool = True) -> dict[str, Tensor]:
    """Return the tensors of the folder, as of `read_safetensors`."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        tensors |= read_safetensors(path, skip=skip, finite=finite)
    return tensors


def read_pt(path: Path) -> dict[str, Tensor]:
    """Return a torch state dict, the `module.` of data-parallel training taken off its keys."""
    check_no_pipe(path)
    _check_fetched(path)
    try:
        _check_not_packed(path)
        state = torch.load(path, map_location=torch.get_default_device(), weights_only=True)
    except Exception as error:  # unpickling reports damage by many types, none of them of one base
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadValue(f"'{path}' cannot be read as tensors: {first_line}") from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BadValue(f"'{path}' must hold a mapping of names to tensors, got {type(state).__name__}")
    for name, tensor in state.items():
        _check_written_out(path, str(name), tensor)
    check_finite(path, state)
    return {str(name).removeprefix("module."): tensor for name, tensor in state.items()}


def _check_not_packed(path: Path) -> None:
    """Raise `ValueError` for an archive of more bytes than its file has: they may fill the memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > path.stat().st_size:
            raise ValueError(f"it is packed, {size} bytes in a file of {path.stat().st_size}; torch.save packs nothing")


def _check_written_out(path: Path, name: str, tensor: Tensor) -> None:
    """Raise `BadValue` for a tensor that is not plain, or has more numbers than the file: one may stand for 10^12."""
    here = tensor.device.type == torch.get_default_device().type
    plain = tensor.layout == torch.strided and here and not (tensor.is_nested or tensor.is_quantized)
    if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise BadValue(f"'{path}' holds {shown(name)} as a sparse, quantized or expanded tensor, not a plain one")


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: Path, dtype_of: Callable[[str], torch.dtype]) -> None:
    """Give `module` exactly these tensors: in place, or, where it is on the meta device, cast to `dtype_of(name)`."""
    state = module.state_dict()
    check_tensors(where, tensors, state)
    empty = any(tensor.is_meta for tensor in state.values())
    if empty:
        tensors = {name: tensor.to(dtype_of(name), copy=True) for name, tensor in tensors.items()}
    module.load_state_dict(tensors, strict=True, assign=empty)


def write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `model.safetensors`, or shards and their index above `SHARD_BYTES`; remove files of the other kind."""
    plan = split_torch_state_dict_into_shards(
        dict(tensors), filename_pattern="model{suffix}.safetensors", max_shard_size=SHARD_BYTES
    )
    for name, keys in plan.filename_to_tensors.items():
        write_safetensors(folder / name, {key: tensors[key] for key in keys})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_json(folder / INDEX_FILE, index)
    else:
        (folder / INDEX_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        stale = _SHARDS.fullmatch(path.name) or path.name == WEIGHTS_FILE
        if stale and path.name not in plan.filename_to_tensors:
            path.unlink()


@contextmanager
def deferred_writes() -> Iterator[list[tuple[Path, Tensors]]]:
    """Context manager in which `write_safetensors` writes nothing; the list has what it was asked to write."""
    deferred: list[tuple[Path, Tensors]] = []
    token = _DEFERRED.set(deferred)
    try:
        yield deferred
    finally:
        _DEFERRED.reset(token)


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write one file of tensors."""
    if (deferred := _DEFERRED.get()) is not None:
        deferred.append((path, tensors))
        return
    partial = path.with_name(path.name + ".partial")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, partial, metadata={"format": "pt"})
    os.replace(partial, path)


def check_tensors(path: Path, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise `BadValue` unless both hold the same names, shapes and kinds of numbers; what differs is named.

    Of tensors on the meta device only names and shapes are compared.
    """
    faults = []
    if missing := sorted(wanted.keys() - got.keys()):
        faults.append(f"missing {_listed(missing)}")
    if unexpected := sorted(got.keys() - wanted.keys()):
        faults.append(f"unexpected {_listed(unexpected)}")
    for name in sorted(wanted.keys() & got.keys()):
        if got[name].shape != wanted[name].shape:
            faults.append(f"'{name}' is {tuple(got[name].shape)}, the model needs {tuple(wanted[name].shape)}")
        elif not got[name].is_meta and got[name].is_floating_point() != wanted[name].is_floating_point():
            faults.append(f"'{name}' holds {got[name].dtype}, the model needs {wanted[name].dtype}")
    if faults:
        raise BadValue(f"'{path}' does not fit its {CONFIG_FILE}: {'; '.join(faults[:8])}")


def _listed(names: list[str], show: int = 6) -> str:
    more = f" and {len(names) - show} more" if len(names) > show else ""
    return ", ".join(f"'{name}'" for name in names[:show]) + more
