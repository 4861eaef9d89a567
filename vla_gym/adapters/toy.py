"""Toy-Reach: a table, a gripper and three blocks, drawn with NumPy. No simulator.

The sentence names one block; touching it solves the task, touching another one ends the episode
unsolved. Blocks lie at random places around the gripper, so neither the image without the sentence
nor the sentence without the image is enough. An episode is fully determined by (split, task, trial).

Lengths are in table sides: the table is the square [0, 1] x [0, 1], x to the right, y downwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from vla_gym.errors import check_known
from vla_gym.simulator import SimStep
from vla_gym.specs import ActionSpec, Benchmark, StartState, Task

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 230),
}
SPLITS = {"train": 0, "test": 1, "validation": 2}
"""Split -> number mixed into the start states' seeds."""

NUM_TRIALS = 50
HORIZON = 12
"""Simulator steps."""
STEP = 0.15
"""Distance along one axis that an action of 1 moves the gripper."""
TOUCH = 0.15
"""A block is reached when the gripper is this close to its centre."""
BLOCK = 0.09
"""Half the side of a block."""
GRIPPER = 0.045
"""Half the side of the drawn gripper."""
WRIST_VIEW = 0.5
"""Side of the square that the wrist camera sees."""

_TABLE = (225, 222, 214)
_GRIPPER_COLOUR = (20, 20, 20)


def toy_benchmark(env_id: str, *, split: str = "train") -> Benchmark:
    """Describe `Toy-Reach`: one task per colour; no two splits share a start state."""
    check_known("split", split, SPLITS)
    tasks = tuple(
        Task(
            name=f"reach_{colour}",
            instruction=f"reach the {colour} block",
            horizon=HORIZON,
            num_trials=NUM_TRIALS,
            suite="toy_reach",
        )
        for colour in COLOURS
    )
    return Benchmark(
        id=env_id,
        tasks=tasks,
        action_dim=2,
        action_spec=ActionSpec(rotation="none", gripper="none", frame="delta"),
        state_dim=2,
        cameras=("image", "wrist_image"),
        default_image_size=32,
        control_hz=10.0,
        simulator="vla_gym.adapters.toy:ToyReach",
        simulator_kwargs={"split": split},
        in_process=True,
        protocol={"horizon": HORIZON, "step": STEP, "touch": TOUCH, "num_trials": NUM_TRIALS},
    )


class ToyReach:
    """One sub-environment of Toy-Reach; see `vla_gym.simulator.Simulator`."""

    def __init__(
        self, tasks: tuple[Task, ...], image_size: int, cameras: tuple[str, ...], *, split: str = "train"
    ) -> None:
        self._targets = [list(COLOURS).index(task.name.removeprefix("reach_")) for task in tasks]
        self._image_size = image_size
        self._cameras = cameras
        self._split = SPLITS[split]
        self._target = 0
        self._blocks: list[tuple[float, float]] = []
        self._x = self._y = 0.5

    def reset(self, start: StartState) -> str:
        self._target = self._targets[start.task_id]
        rng = np.random.default_rng([self._split, self._target, start.trial_id])
        gripper = 0.5 + rng.uniform(-0.06, 0.06, size=2)
        # Spread in angle, so that the straight way to any block touches no other.
        angle = rng.uniform(0.0, 2.0 * np.pi) + rng.permutation(3) * (2.0 * np.pi / 3.0)
        angle = angle + rng.uniform(-0.3, 0.3, size=3)
        radius = rng.uniform(0.32, 0.40, size=3)
        blocks = 0.5 + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        self._x, self._y = (float(value) for value in gripper)
        self._blocks = [(float(x), float(y)) for x, y in blocks]
        state = np.concatenate([gripper, blocks.ravel()]).astype("<f8")
        return hashlib.sha256(state.tobytes()).hexdigest()[:32]

    def step(self, action_A: np.ndarray) -> SimStep:
        dx, dy = action_A.tolist()
        self._x = min(1.0, max(0.0, self._x + STEP * dx))
        self._y = min(1.0, max(0.0, self._y + STEP * dy))
        touched = [
            index for index, (x, y) in enumerate(self._blocks) if (x - self._x) ** 2 + (y - self._y) ** 2 <= TOUCH**2
        ]
        success = self._target in touched
        return SimStep(reward=float(success), success=success, terminated=bool(touched))

    def observe(self) -> Mapping[str, np.ndarray]:
        """Draw now; `state` is the gripper's place, scaled to [-1, 1]."""
        out: dict[str, np.ndarray] = {}
        if "image" in self._cameras:
            out["image"] = self._draw(0.0, 0.0, 1.0)
        if "wrist_image" in self._cameras:
            half = WRIST_VIEW / 2
            out["wrist_image"] = self._draw(self._x - half, self._y - half, WRIST_VIEW)
        out["state"] = np.array([2.0 * self._x - 1.0, 2.0 * self._y - 1.0], dtype=np.float32)
        return out

    def close(self) -> None:
        """Do nothing."""

    def _draw(self, left: float, top: float, side: float) -> np.ndarray:
        image = np.full((self._image_size, self._image_size, 3), _TABLE, dtype=np.uint8)
        scale = self._image_size / side
        boxes = [(x, y, BLOCK, colour) for (x, y), colour in zip(self._blocks, COLOURS.values(), strict=True)]
        for x, y, half, colour in [*boxes, (self._x, self._y, GRIPPER, _GRIPPER_COLOUR)]:
            x0, x1 = ((x + offset - left) * scale for offset in (-half, half))
            y0, y1 = ((y + offset - top) * scale for offset in (-half, half))
            if x1 > 0 and y1 > 0:
                image[max(0, round(y0)) : round(y1), max(0, round(x0)) : round(x1)] = colour
        return image
