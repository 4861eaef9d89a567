"""`scripted_simulator.Scripted` as a batch: every slot moves with every step, whether it was meant or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scripted_simulator import scripted_benchmark

from vla_gym.specs import Benchmark, StartState, Task
from vla_gym.workers.batch_pool import BatchStep


class ScriptedBatch:
    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        num_envs: int,
        num_workers: int,
        lengths: Sequence[int],
        failure: str = "",
        stamp: str = "",
    ) -> None:
        self._lengths, self._failure, self._stamp = lengths, failure, stamp
        self._image_size, self._cameras = image_size, cameras
        self._length_N = np.zeros(num_envs, dtype=int)
        self._count_N = np.zeros(num_envs, dtype=int)
        self.calls: list[str] = []
        self.resets: list[Mapping[int, StartState]] = []
        self.closed, self.restores = False, 0

    def reset(self, starts: Mapping[int, StartState]) -> dict[int, str]:
        self.calls.append("reset")
        self.resets.append(starts)
        assert list(starts) == sorted(starts)
        for slot, start in starts.items():
            self._length_N[slot], self._count_N[slot] = self._lengths[start.task_id], 0
        return {slot: f"{self._stamp}{start.task_id:02x}{start.trial_id:02x}" for slot, start in starts.items()}

    def step(self, action_NA: np.ndarray) -> BatchStep:
        self.calls.append("step")
        if self._failure == "raise" and (action_NA > 0.9).any():
            raise ZeroDivisionError("the arm fell off")
        self._count_N += 1
        done_N = self._count_N == self._length_N
        return BatchStep(reward_N=done_N.astype(float), success_N=done_N, terminated_N=done_N)

    def save(self, slots: Sequence[int]) -> Any:
        assert list(slots) == sorted(slots)
        return self._count_N[list(slots)].copy()

    def restore(self, held: Sequence[tuple[Sequence[int], Any]]) -> None:
        self.restores += 1
        for slots, saved in held:
            self._count_N[list(slots)] = saved

    def observe(self) -> Mapping[str, np.ndarray]:
        self.calls.append("observe")
        image = np.ones((len(self._count_N), self._image_size, self._image_size, 3), dtype=np.uint8)
        image *= self._count_N[:, None, None, None].astype(np.uint8)
        return {**dict.fromkeys(self._cameras, image), "state": self._count_N[:, None].astype(np.float32)}

    def close(self) -> None:
        self.closed = True


def batched_benchmark(**options: Any) -> Benchmark:
    """`scripted_benchmark(**options)` run by a `ScriptedBatch`."""
    alone = scripted_benchmark(**options)
    return dataclasses.replace(alone, simulator="scripted_batch:ScriptedBatch", batched=True)
