"""LIBERO-Plus on LIBERO's own scenes: camera, arm and image changed as the task's name says.

Tasks of one unchanged task share its scene; what differs is applied at the reset and to the image.
"""

from __future__ import annotations

from functools import cache

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

from vla_gym.adapters.libero.plus_tasks import read_name
from vla_gym.adapters.libero.sensor_noise import noisy
from vla_gym.adapters.libero.simulator import CAMERA_NAMES, LiberoSimulator, SceneKey
from vla_gym.specs import Task

HOME = np.array([0.0, -1.61037389e-01, 0.0, -2.44459747, 0.0, 2.22675220, np.pi / 4])
"""The arm's home in LIBERO, radians."""
NUM_HOMES, HOMES_OF_RADIUS = 500, 100
"""Other homes of the arm; the first hundred lie 0.1 rad from LIBERO's, the next 0.2 rad, and so on."""
PIVOT = np.array([0.0, 0.0, 0.8])
"""Point that the camera goes around and towards, metres."""
UP, SIDEWAYS = np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0])
DIGITS = 4
"""Decimals of a camera's pose upstream, after every turn."""


class LiberoPlusSimulator(LiberoSimulator):
    """One sub-environment of LIBERO-Plus; its arguments are those of `LiberoSimulator`."""

    def _key(self, task: Task) -> SceneKey:
        unchanged, _, _ = task.suite.rpartition("_")
        return unchanged, read_name(task.name).base, self._image_size, self._cameras, self._quality

    def _switch_to(self, task: Task) -> None:
        self._changed = read_name(task.name)
        super()._switch_to(task)
        self._agentview = self._model.camera(CAMERA_NAMES["image"]).id
        self._view = camera_pose(
            self._model.cam_pos[self._agentview], self._model.cam_quat[self._agentview], self._changed.view
        )

    def _change(self) -> str:
        return self._task.name if self._task else ""

    def _home(self) -> np.ndarray:
        return homes()[self._changed.initstate - 1] if self._changed.initstate else super()._home()

    def _sample(self) -> None:
        super()._sample()
        place_3, quat_wxyz = self._view
        self._seen.cam_xpos[self._agentview] = place_3
        mujoco.mju_quat2Mat(self._seen.cam_xmat[self._agentview], quat_wxyz)

    def _draw(self) -> list[np.ndarray]:
        images, noise = super()._draw(), self._changed.noise
        if noise and "image" in self._cameras:
            main = self._cameras.index("image")
            # The same picture of the same moment, however often it is drawn.
            images[main] = noisy(images[main], noise, np.random.RandomState([noise, round(1e3 * self._data.time)]))
        return images


def camera_pose(pos_3: np.ndarray, quat_wxyz: np.ndarray, view: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return position `[3]` and unit quaternion `[4]` of the camera by `Change.view`, from LIBERO's.

    As set_camera in LIBERO-Plus's problems/libero_*_manipulation.py: the view is rounded even where nothing turns it.
    """
    about, over, percent, turn, tilt = view
    turned = Rotation.from_quat(np.roll(quat_wxyz, -1))
    for axis, degrees in ((SIDEWAYS, -over), (UP, about)):
        if degrees or axis is UP:
            by = Rotation.from_rotvec(np.radians(degrees) * axis)
            pos_3, turned = _rounded(by.apply(pos_3 - PIVOT) + PIVOT), _turned(by, turned)
    if percent != 100:
        pos_3 = _rounded(PIVOT + (pos_3 - PIVOT) * (percent / 100))
    for axis, degrees in ((UP, turn), (SIDEWAYS, -tilt)):
        if degrees:
            turned = _turned(Rotation.from_rotvec(np.radians(degrees) * axis), turned)
    quat = np.roll(turned.as_quat(), 1)
    return pos_3, quat


def _turned(by: Rotation, turned: Rotation) -> Rotation:
    return Rotation.from_quat(_rounded((by * turned).as_quat()))


def _rounded(numbers: np.ndarray) -> np.ndarray:
    return np.array([round(number, DIGITS) for number in numbers.tolist()])  # np.round decides ties otherwise


@cache
def homes() -> np.ndarray:
    """Return the 500 homes of the arm, radians `[500, 7]`: LIBERO-Plus's robots/new_init.py, whose output it ships."""
    rng = np.random.RandomState(42)
    away = [rng.randn(len(HOME)) for _ in range(NUM_HOMES)]
    radius = [0.1 * (1 + number // HOMES_OF_RADIUS) for number in range(NUM_HOMES)]
    return np.round([HOME + way / np.linalg.norm(way) * far for way, far in zip(away, radius, strict=True)], 8)
