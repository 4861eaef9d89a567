"""One process for the emulated device, started once: the device cannot be removed from a process again."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

# For the process, which inherits `sys.path`.
sys.path.insert(0, str(Path(__file__).parent))

from emulated_cases import start


@pytest.fixture(scope="session")
def on_device() -> Iterator[Callable[..., Any]]:
    """`on_device(function, *args)`: the function's result, computed in the process of the device."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), start) as process:

        def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return process.submit(function, *args, **kwargs).result()

        yield run
