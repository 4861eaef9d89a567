"""Demonstrations as fine-tuning learns them: frames with the expert's next K actions; and whether they fit the run."""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.observation import encode_instruction
from vla_gym.specs import Benchmark
from vla_gym.system.limits import main_memory
from vla_policies import VLAPolicy
from vla_policies.devices import upload
from vla_policies.processing.observations import on_device
from zoo.config.advice import TrainingWarning
from zoo.demonstrations.lerobot_reader import check_dataset
from zoo.demonstrations.recorder import DRAWN, PRIVILEGED, Demonstration, StoredImages

_logger = logging.getLogger(__name__)

_ACTION, _MASK = "action", "mask"
SECONDS_PER_LINE = 20.0
"""How often a line says how many episodes have been read: images of a large dataset take minutes."""
MEMORY_SHARE = 0.5
"""Share of the main memory above which images lie in a file; the rest is for the network and for simulators."""
LOCAL_RANKS = "LOCAL_WORLD_SIZE"
"""Variable in which torchrun and Accelerate say how many processes share this machine's memory."""


@dataclass(frozen=True)
class Frames:
    """B frames of demonstrations, or all of them."""

    obs: dict[str, Tensor]
    """`image` uint8 `[B, H, W, 3]`, perhaps `wrist_image`, `state` float32 `[B, S]`; `instruction` uint8 `[B, 160]`."""
    action_BKA: Tensor
    """The expert's actions of the next K steps, float32; zero after the episode's end."""
    mask_BK: Tensor
    """True where the episode still ran."""
    weight_B: Tensor | None = None
    """Weight in the loss, float32; None = all alike."""
    privileged_BP: Tensor | None = None
    """The expert's privileged observations, float32; None = not read."""

    def __len__(self) -> int:
        return len(self.action_BKA)

    def digests(self) -> tuple[str, str]:
        """Return the hash of all that is learned, and the one that earlier versions noted in its place.

        The first covers every image: BLAKE2 takes a second for a gigabyte, which took minutes to decode. The second
        covers actions, weights and what the expert saw alone.
        """
        numbers = {_ACTION: self.action_BKA, "weight": self.weight_B, PRIVILEGED: self.privileged_BP}
        bare, whole = hashlib.sha256(), hashlib.blake2b(digest_size=32)
        for name, column_B in {**numbers, _MASK: self.mask_BK, **dict(sorted(self.obs.items()))}.items():
            if column_B is not None:
                data = column_B.contiguous().numpy().data
                whole.update(f"{name} {column_B.dtype} {tuple(column_B.shape)};".encode())
                whole.update(data)
                if name in numbers:
                    bare.update(data)
        return f"blake2b:{whole.hexdigest()}", bare.hexdigest()

    def pick(self, index_B: Tensor, device: torch.device) -> Frames:
        """Return the frames of `index_B`, on `device`, but for what is read on the CPU."""

        def take(column_F: Tensor) -> Tensor:
            return upload(column_F[index_B], device)

        return Frames(
            obs=on_device({key: column_F[index_B] for key, column_F in self.obs.items()}, device),
            action_BKA=take(self.action_BKA),
            mask_BK=take(self.mask_BK),
            weight_B=None if self.weight_B is None else take(self.weight_B),
            privileged_BP=None if self.privileged_BP is None else take(self.privileged_BP),
        )


def frames_of(demonstrations: Sequence[Demonstration], chunk: int) -> Frames:
    """Return every drawn frame of every demonstration with its chunk of K actions.

    Images are read here, an episode at a time. Raise `BadValue` without demonstrations, for demonstrations of several
    shapes, and for images that cannot be read or kept.
    """
    if not demonstrations:
        raise BadValue("no demonstrations to learn from")
    wanted = _shapes(demonstrations[0])
    for one in demonstrations:
        if (got := _shapes(one)) != wanted:
            raise BadValue(f"episodes cannot be learned together: one has {_listed(got)}, another {_listed(wanted)}")
    learned = [one.extra.get(DRAWN, np.ones(one.length, np.bool_)) for one in demonstrations]
    ends = np.cumsum([learned_T.sum() for learned_T in learned])
    whole = image_arrays({key: (int(ends[-1]), *wanted[key]) for key in demonstrations[0].images})
    said = time.monotonic()
    for number, (end, one, learned_T) in enumerate(zip(ends, demonstrations, learned, strict=True)):
        if time.monotonic() - said >= SECONDS_PER_LINE:
            said = time.monotonic()
            _logger.info(f"images of {number} of {len(demonstrations)} episodes read")
        for key, column in _columns(one, chunk).items():
            column_T = np.asarray(column)[learned_T]
            if key not in whole:
                whole[key] = np.empty((int(ends[-1]), *column_T.shape[1:]), column_T.dtype)
            whole[key][end - len(column_T) : end] = column_T
    tensors = {key: torch.from_numpy(column) for key, column in whole.items()}
    return Frames(
        action_BKA=tensors.pop(_ACTION),
        mask_BK=tensors.pop(_MASK),
        privileged_BP=tensors.pop(PRIVILEGED, None),
        obs=tensors,
    )


def _columns(one: Demonstration, chunk: int) -> dict[str, np.ndarray | StoredImages]:
    action_TKA, mask_TK = chunk_targets(one.action_TA, chunk)
    instruction_TL = np.tile(encode_instruction(one.instruction), (one.length, 1))
    columns = {**one.images, "instruction": instruction_TL, _ACTION: action_TKA, _MASK: mask_TK}
    if one.state_TS.shape[1]:
        columns["state"] = one.state_TS
    if PRIVILEGED in one.extra:
        columns[PRIVILEGED] = one.extra[PRIVILEGED]
    return columns


def _shapes(one: Demonstration) -> dict[str, tuple[int, ...]]:
    columns = {**one.images, "state": one.state_TS, "action": one.action_TA}
    return {name: column_T.shape[1:] for name, column_T in columns.items()}


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())


def chunk_targets(action_TA: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Return actions of the next K steps from each step, `[T, K, A]`, and where there are any, bool `[T, K]`."""
    length = len(action_TA)
    at_TK = np.arange(length)[:, None] + np.arange(chunk)
    mask_TK = at_TK < length
    action_TKA = np.where(mask_TK[..., None], action_TA[np.minimum(at_TK, length - 1)], 0.0)
    return action_TKA.astype(np.float32), mask_TK


def image_arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return new uint8 arrays to be written; if they are large together they lie in a file of `$TMPDIR`.

    The file goes with the process, and the system keeps in memory what it has room for of it. Raise `BadValue` where
    neither has room.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    size, memory, folder = sum(sizes), main_memory(), tempfile.gettempdir()
    if size <= MEMORY_SHARE * memory / int(os.environ.get(LOCAL_RANKS, "1")):
        data = np.empty(size, np.uint8)
    else:
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                # What is reserved cannot run out while the array is written, which would end the process.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                    raise
                raise BadValue(
                    f"images of {size / 1e9:.1f} GB are to be learned; the memory has {memory / 1e9:.1f} GB, and there "
                    f"is no room for them in '{folder}'. Name a folder of a larger disk in the variable TMPDIR, or "
                    "learn fewer episodes (--episodes of vla-zoo sft)"
                ) from error
            _logger.info(f"{size / 1e9:.1f} GB of images lie in a file of '{folder}' (memory: {memory / 1e9:.1f} GB)")
            data = np.memmap(file, np.uint8, "r+", shape=(size,))
    parts = np.split(data, np.cumsum(sizes)[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def batches(num_frames: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield indices of batches, without end: every frame once, in random order, then once more."""
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < batch_size:
            left = torch.cat([left, torch.randperm(num_frames, generator=generator)])
        yield left[:batch_size]
        left = left[batch_size:]


# Whether demonstrations fit the run -----------------------------------------------------------------


def fitting(
    groups: Mapping[Path, Sequence[Demonstration]], policy: VLAPolicy, benchmark: Benchmark
) -> list[Demonstration]:
    """Return the demonstrations of all datasets, with the cameras alone that the policy looks at.

    Raise, and warn, as `check_rate` and `check_fits` do.
    """
    for folder, group in groups.items():
        check_rate(folder, benchmark)
        check_fits(group, policy, folder)
    return [
        replace(one, images={key: one.images[key] for key in policy.conventions.cameras})
        for one in chain.from_iterable(groups.values())
    ]


def check_fits(demonstrations: Sequence[Demonstration], policy: VLAPolicy, where: Path) -> None:
    """Raise `BadValue` when the demonstrations are of another arm, or lack what the policy reads.

    Warn of images of another size than the environment draws.
    """
    wanted, first = policy.conventions, demonstrations[0]
    num_actions, num_states = first.action_TA.shape[1], first.state_TS.shape[1]
    if num_actions != wanted.action_dim:
        raise BadValue(f"'{where}' has actions of {num_actions} numbers, the environment takes {wanted.action_dim}")
    if wanted.state_dim and num_states != wanted.state_dim:
        raise BadValue(f"'{where}' has states of {num_states} numbers, the policy reads {wanted.state_dim}")
    if missing := [camera for camera in wanted.cameras if camera not in first.images]:
        raise BadValue(f"'{where}' has no camera '{missing[0]}', which the policy looks at")
    highest = max(float(abs(one.action_TA).max()) for one in demonstrations)
    if highest > 1.0 + 1e-4:
        raise BadValue(
            f"'{where}' has actions up to {highest:.3g}; they must lie in [-1, 1], as the environment's do. Where its "
            "simulator cut them to that, the dataset must hold them cut"
        )
    assert isinstance(policy.observation_space, spaces.Dict)
    for camera in wanted.cameras:
        (height, width, _), drawn = first.images[camera].shape[1:], policy.observation_space[camera].shape
        if drawn is not None and (height, width) != drawn[:2]:
            remedy = f"; -params image_size:{height} draws such ones" if height == width else ""
            warnings.warn(
                f"'{where}' has images of {width} x {height} ('{camera}'), the environment draws {drawn[1]} x "
                f"{drawn[0]}: the policy learns from others than it acts on{remedy}",
                TrainingWarning,
                stacklevel=2,
            )
            break


def check_rate(folder: Path, benchmark: Benchmark) -> None:
    """Warn when the dataset has other steps in a second than the environment: its actions may be of another length."""
    fps = check_dataset(folder).fps
    if round(fps) != round(benchmark.control_hz):
        warnings.warn(
            f"'{folder}' has {fps:g} frames per second, the environment {benchmark.control_hz:g} steps: each action "
            "becomes one step",
            TrainingWarning,
            stacklevel=2,
        )
