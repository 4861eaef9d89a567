from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest

from vla_gym.observation import ObservationLayout
from vla_gym.workers.shared_memory import MemoryLayout, SlotMemory, shared_block

LAYOUT = MemoryLayout(
    num_slots=3,
    chunk=2,
    action_dim=7,
    observation=ObservationLayout(cameras=("image", "wrist_image"), image_size=5, state_dim=3),
)


def observation(value: int) -> dict[str, np.ndarray]:
    image = np.full((5, 5, 3), value, dtype=np.uint8)
    return {"image": image, "wrist_image": image + 1, "state": np.full(3, value, dtype=np.float32)}


def test_arrays_do_not_overlap_and_are_aligned() -> None:
    offsets, size = LAYOUT.offsets()
    spans = []
    for name, (shape, dtype) in LAYOUT.arrays().items():
        assert offsets[name] % 64 == 0
        spans.append((offsets[name], offsets[name] + int(np.prod(shape)) * dtype.itemsize))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] <= size


def test_two_attachments_see_each_other() -> None:
    fd = shared_block(LAYOUT.offsets()[1])
    try:
        first, second = SlotMemory.attach(LAYOUT, fd), SlotMemory.attach(LAYOUT, fd)
    finally:
        os.close(fd)
    first.write(2, observation(9))
    second.action_NKA[1] = 0.5
    assert (second.observation["image"][2] == 9).all()
    assert (second.observation["wrist_image"][2] == 10).all()
    assert not second.observation["image"][:2].any()
    assert (first.action_NKA[1] == 0.5).all()


def test_a_wrong_observation_is_refused() -> None:
    memory = SlotMemory.private(LAYOUT)
    right = observation(1)
    with pytest.raises(ValueError, match="keys"):
        memory.write(0, {"image": right["image"]})
    with pytest.raises(ValueError, match=r"'image' is uint8\[4, 5, 3\]"):
        memory.write(0, {**right, "image": right["image"][1:]})
    with pytest.raises(ValueError, match="'state' is float64"):
        memory.write(0, {**right, "state": right["state"].astype(np.float64)})
