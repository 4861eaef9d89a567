"""Forks of a server that has imported what they run, which takes a fresh Python seconds.

The process that tests is not forked itself: it has threads and GL contexts, and a fork would wait for them for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import cloudpickle
import numpy as np
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import prepare_multi_gpu_env

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["zoo.train", "zoo.sft", "tests.zoo.forks"])


def forked(act: Callable[[], object], said: Path) -> BaseProcess:
    """A process that calls `act` and ends with its code, after a traceback with 1; it prints into `said`."""
    process = _SERVER.Process(target=_fork, args=(cloudpickle.dumps(act), said, dict(os.environ), Path.cwd()))
    process.start()
    return process


def _fork(act: bytes, said: Path, environment: Mapping[str, str], folder: Path) -> None:
    output = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for number in (1, 2):
        os.dup2(output, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.exit(int(cloudpickle.loads(act)() or 0))


def code_of(process: BaseProcess, timeout: float = 300.0) -> int:
    """Exit code once it has ended; it is killed after `timeout` seconds."""
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def as_ranks(processes: int, act: Callable[[], object], **launch: str) -> str:
    """Let so many forks call `act` as ranks of one run, with `launch` in their environment.

    Returns what they said, once all have ended well.
    """
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def rank(number: int) -> object:
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ.update({**launch, **meeting, **{name: str(value) for name, value in place.items()}})
        # Processes that were started apart have no random numbers in common.
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)
        return act()

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(number)) for number in range(processes)]
        ranks = [forked(lambda number=number: rank(number), file) for number, file in enumerate(files)]  # type: ignore[misc]
        try:
            codes = [code_of(process) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        said = "".join(file.read_text() for file in files)
    assert codes == [0] * processes, said
    return said


def launch_environment(processes: int, config: Path, precision: str) -> dict[str, str]:
    """What `accelerate launch` tells the processes that it starts with a configuration."""
    flags = ["--config_file", str(config), "--num_processes", str(processes), "--main_process_port", "0"]
    asked = launch_command_parser().parse_args([*flags, "--mixed_precision", precision, "script.py"])
    told = prepare_multi_gpu_env(_validate_launch_command(asked)[0])
    return {name: value for name, value in told.items() if os.environ.get(name) != value}
