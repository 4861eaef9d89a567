from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Text

from vla_gym.observation import ObservationLayout


def test_space_has_the_declared_keys() -> None:
    space = ObservationLayout(cameras=("image", "wrist_image"), image_size=16, state_dim=8).space()
    assert set(space.spaces) == {"image", "wrist_image", "state", "instruction"}
    assert space["image"] == Box(0, 255, (16, 16, 3), np.uint8)
    assert space["state"] == Box(-np.inf, np.inf, (8,), np.float32)
    assert isinstance(space["instruction"], Text)


def test_no_state_no_key() -> None:
    space = ObservationLayout(cameras=("image",), image_size=16, state_dim=0).space()
    assert set(space.spaces) == {"image", "instruction"}


def test_instructions_are_sentences() -> None:
    space = ObservationLayout(cameras=("image",), image_size=16, state_dim=0).space()["instruction"]
    assert space.contains("Put the robot\u2019s bowl on the plate, please.")
    assert not space.contains("")
    assert not space.contains("naïve")


def test_bytes_space_holds_arrays_only() -> None:
    space = ObservationLayout(cameras=("image",), image_size=16, state_dim=2).bytes_space()
    assert space["instruction"] == Box(0, 255, (160,), np.uint8)
    assert all(isinstance(one, Box) for one in space.spaces.values())
