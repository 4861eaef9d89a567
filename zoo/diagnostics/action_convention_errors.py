"""Errors of an environment's action convention, each as the matrix that undoes it on an expert's action."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vla_gym.specs import Benchmark, Task
from zoo.experts import Expert


def action_convention_errors(benchmark: Benchmark) -> dict[str, np.ndarray]:
    """Return error -> matrix `[A, A]` that undoes it, for the errors that the benchmark's actions can have."""
    spec, size = benchmark.action_spec, benchmark.action_dim
    hands = size - (spec.gripper != "none")
    level = 3 if spec.rotation != "none" else hands
    found = {
        "the movement's sign is inverted": _signs(size, range(level)),
        "the movement's x and y are exchanged": np.eye(size)[[1, 0, *range(2, size)]],
        "movements and turns are twice as large as declared": _scaled(size, range(hands), 0.5),
    }
    if spec.rotation != "none":
        found["the rotation's sign is inverted"] = _signs(size, range(3, 6))
        found["the rotation's axes are in reverse order"] = np.eye(size)[[0, 1, 2, 5, 4, 3, *range(6, size)]]
    if spec.gripper != "none":
        found["the gripper's sign is inverted"] = _signs(size, [size - 1])
    return found


def corrected(make_expert: Callable[[Task], Expert], matrix_AA: np.ndarray) -> Callable[[Task], Expert]:
    """Return the expert with its actions multiplied by the matrix."""
    return lambda task: _Corrected(make_expert(task), matrix_AA)


class _Corrected:
    def __init__(self, expert: Expert, matrix_AA: np.ndarray) -> None:
        self._expert, self._matrix_AA = expert, matrix_AA

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        """Return float32 `[A]`."""
        return (self._matrix_AA @ self._expert.action(privileged_P)).astype(np.float32)


def _signs(size: int, inverted: range | list[int]) -> np.ndarray:
    return _scaled(size, inverted, -1.0)


def _scaled(size: int, dims: range | list[int], factor: float) -> np.ndarray:
    diagonal = np.ones(size)
    diagonal[list(dims)] = factor
    return np.diag(diagonal)
