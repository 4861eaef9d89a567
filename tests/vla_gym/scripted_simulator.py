"""A simulator that does exactly what a test wrote down; workers import it like any other.

Task k ends, solved, after `lengths[k]` steps (never by itself when that is 0). Its picture is filled
with the number of steps done. An action whose first number is above 0.9 sets off `failure`; those that concern
building, resets and the kind of numbers need none.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from vla_gym.simulator import SimStep
from vla_gym.specs import ActionSpec, Benchmark, StartState, Task

LENGTHS = (3, 7, 12)


class Scripted:
    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        lengths: Sequence[int],
        failure: str = "",
        stamp: str = "",
    ) -> None:
        if failure == "unbuildable":
            raise RuntimeError("cannot be built")
        self._lengths = lengths
        self._image_size = image_size
        self._cameras = cameras
        self._failure = failure
        self._stamp = stamp
        self._length = self._count = 0
        self.renders = 0
        self.closed = False

    def reset(self, start: StartState) -> str:
        if self._failure == "bad reset":
            raise RuntimeError("cannot be reset")
        self._length = self._lengths[start.task_id]
        self._count = 0
        return f"{self._stamp}{start.task_id:02x}{start.trial_id:02x}"

    def step(self, action_A: np.ndarray) -> SimStep:
        if action_A[0] > 0.9:
            self._misbehave()
        self._count += 1
        done = self._count == self._length
        if self._failure == "numpy numbers":
            ended = np.bool_(done)
            return SimStep(reward=np.float32(done), success=ended, terminated=ended)  # type: ignore[arg-type]
        return SimStep(reward=float(done), success=done, terminated=done)

    def observe(self) -> Mapping[str, np.ndarray]:
        self.renders += 1
        shape = (self._image_size, self._image_size, 3)
        return {
            **{name: np.full(shape, self._count, dtype=np.uint8) for name in self._cameras},
            "state": np.array([self._count], dtype=np.float32),
        }

    def privileged(self) -> np.ndarray:
        return np.array([self._count / 3, self._length], dtype=np.float64)

    def close(self) -> None:
        self.closed = True

    def _misbehave(self) -> None:
        if self._failure == "raise":
            raise ZeroDivisionError("the arm fell off")
        if self._failure == "die":
            sys.stderr.write("about to die\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._failure == "hang":
            time.sleep(3600)


def scripted_benchmark(
    lengths: Sequence[int] = LENGTHS,
    *,
    num_trials: int = 2,
    horizon: int = 100,
    in_process: bool = True,
    failure: str = "",
    stamp: str = "",
) -> Benchmark:
    """One task per entry of `lengths`, actions `[K, 2]`, `state` = [steps done]."""
    return Benchmark(
        id="Scripted",
        tasks=tuple(
            Task(
                name=f"task_{index}",
                instruction=f"do thing {index}",
                horizon=horizon,
                num_trials=num_trials,
                suite="scripted",
            )
            for index in range(len(lengths))
        ),
        action_dim=2,
        action_spec=ActionSpec(rotation="none", gripper="none", frame="delta"),
        state_dim=1,
        cameras=("image", "wrist_image"),
        default_image_size=8,
        control_hz=10.0,
        simulator="scripted_simulator:Scripted",
        simulator_kwargs={"lengths": list(lengths), "failure": failure, "stamp": stamp},
        in_process=in_process,
    )


def named(env_id: str, *, split: str = "train") -> Benchmark:
    """`scripted_benchmark` as a registered one is built."""
    return dataclasses.replace(scripted_benchmark(stamp=split), id=env_id)
