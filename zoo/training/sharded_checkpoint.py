"""Checkpoints of a sharded policy, through torch.distributed.checkpoint.

    <run>/checkpoints/step_<n>/
        optimizer-00001-of-00004.safetensors   what the first of four ranks holds of the optimiser's state

Each rank copies its part to main memory, and writes it while training goes on. Any number of ranks reads it, sharded or
not, each what it needs. The files are those of torch's `HuggingFaceStorageReader`: offsets stand in their headers.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemWriter, HuggingFaceStorageReader
from torch.distributed.checkpoint.filesystem import FileSystem

from vla_gym.errors import BadValue
from vla_gym.reading import file_sha256
from vla_policies.checkpoint_io.manifest import MANIFEST_FILE, extend_manifest
from vla_policies.checkpoint_io.weights import Tensors, deferred_writes, write_safetensors
from zoo.distributed.process_group import ProcessGroup
from zoo.files import naming, new_folder, put_folder
from zoo.runs.folder import OPTIMIZER_FILE, optimizer_files

_OFFSETS, _OFFSETS_OF_TENSOR = "DCP_SHARDING_INFO", "saved_offsets"
"""Names in the headers of files, as torch reads them."""


def save_in_background(
    folder: Path, state: Mapping[str, Tensor], process_group: ProcessGroup, fill: Callable[[Path], None]
) -> Future[Any]:
    """Write the ranks' parts of an optimiser's `state`, and what `fill` writes into the folder it is given.

    Every rank must call it. It returns once all is in main memory. Rank 0's files of `fill` count, and each file of
    tensors is one rank's to write.
    """
    first, rank, size = process_group.is_first, process_group.rank, process_group.size
    partial = Path(process_group.broadcast_object(str(new_folder(folder)) if first else None))
    with TemporaryDirectory() as scratch, deferred_writes() as files:
        fill(partial if first else Path(scratch))
    latest = {path.name: tensors for path, tensors in files}  # a file may be written again
    own = {name: _in_main_memory(tensors) for name, tensors in list(latest.items())[rank::size]}
    part = f"{Path(OPTIMIZER_FILE).stem}-{rank + 1:05d}-of-{size:05d}.safetensors"
    future = dcp.async_save(
        dict(state), storage_writer=_Writer(partial, folder, part, own), process_group=process_group.background_group
    )
    assert isinstance(future, Future)
    if first:
        future.add_done_callback(lambda _: shutil.rmtree(partial, ignore_errors=True))
    return future


def read_optimizer_shapes(folder: Path) -> dict[str, Tensor]:
    """Return the optimiser's tensors, whole and on the meta device; raises `BadValue` where there is no file."""
    if not optimizer_files(folder):
        raise BadValue(f"checkpoint '{folder}' lacks {OPTIMIZER_FILE}")
    found: dict[str, Any] = _reader(folder).read_metadata().state_dict_metadata
    return {key: torch.empty(one.size, dtype=one.properties.dtype, device="meta") for key, one in found.items()}


def read_optimizer(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill `tensors`, whole or sharded, by those of the same names in the optimiser's files."""
    with warnings.catch_warnings(), first_failure():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each rank reads for itself
        dcp.load(tensors, storage_reader=_reader(folder), no_dist=True)


class _Writer(FileSystemWriter):
    """Writes this rank's `part` and `own` files of tensors; the coordinator puts the folder in its place."""

    def __init__(self, partial: Path, folder: Path, part: str, own: Mapping[str, Tensors]) -> None:
        super().__init__(partial)
        self._partial, self._folder, self._part, self._own = partial, folder, part, own

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the copy that is written."""
        return _in_main_memory(state_dict)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Return the SHA-256 of the files that this rank has written."""
        tensors = {item.index.fqn: planner.resolve_data(item) for item in plan.items}
        offsets = {item.index.fqn: {_OFFSETS_OF_TENSOR: list(item.tensor_data.chunk.offsets)} for item in plan.items}
        with naming(self._folder, self._partial):
            save_file(tensors, self._partial / self._part, metadata={_OFFSETS: json.dumps(offsets)})
            for name, some in self._own.items():
                write_safetensors(self._partial / name, some)
            hashes = {name: file_sha256(self._partial / name) for name in (self._part, *self._own)}
        written: torch.futures.Future[dict[str, str]] = torch.futures.Future()
        written.set_result(hashes)
        return written

    def finish(self, metadata: Any, results: Sequence[Any]) -> None:
        """List all files in the manifest, by the hashes of their writers."""
        hashes = dict(ChainMap(*results))
        with naming(self._folder, self._partial):
            names = sorted(file.name for file in self._partial.iterdir() if file.name != MANIFEST_FILE)
            extend_manifest(self._partial, names, known=hashes)
            put_folder(self._partial, self._folder)


class _OptimizerFiles(FileSystem):
    """The optimiser's files alone."""

    def ls(self, path: Any) -> list[str]:
        return [str(file) for file in optimizer_files(Path(path))]


def _reader(folder: Path) -> HuggingFaceStorageReader:
    reader = HuggingFaceStorageReader(str(folder))
    reader.fs = _OptimizerFiles()
    return reader


def _in_main_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


@contextmanager
def first_failure() -> Iterator[None]:
    """Context manager that raises the error of the first rank that had one."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
