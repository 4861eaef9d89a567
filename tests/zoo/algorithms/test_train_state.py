"""Every generator gives the same numbers again after its state is put back."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from zoo.algorithms.train_state import rng_state, set_rng_state


def draw() -> tuple[list[float], list[float], list[float]]:
    return (
        [random.random(), random.gauss(0, 1)],  # noqa: S311
        [*np.random.random(3).tolist(), float(np.random.normal())],
        torch.rand(3).tolist(),
    )


def test_drawing_again_after_going_back_gives_the_same_numbers():
    # An odd number of Gaussian draws leaves half a pair behind, which is state too.
    random.gauss(0, 1)
    np.random.normal()
    saved = json.loads(json.dumps(rng_state()))
    first = draw()
    assert draw() != first
    set_rng_state(saved)
    assert draw() == first


def test_taking_the_state_draws_nothing():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    rng_state()
    assert torch.rand(1) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_run_of_a_gpu_goes_on_without_one():
    saved = rng_state()
    first = draw()
    set_rng_state({**saved, "cuda": "AAAA"})
    assert draw() == first
