"""One process for simulators that tests look into, with a worker's environment: starting one takes some seconds."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from vla_gym import find_benchmark
from vla_gym.workers.process_pool import worker_environment


@pytest.fixture(scope="session")
def probe() -> Iterator[Callable[..., Any]]:
    """`probe(function, *args)`: the result of a function of `libero_probe`, computed in that process."""
    environment = worker_environment(find_benchmark("LIBERO-Spatial"), os.environ, worker=0, num_workers=1)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:

        def run(function: Callable[..., Any], *args: Any) -> Any:
            return process.submit(function, *args).result()

        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            run(os.getpid)  # starts it
        yield run
