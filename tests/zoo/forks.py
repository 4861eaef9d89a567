"""Forks of the process that tests: what they run has been imported already, which takes a fresh Python seconds."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import prepare_multi_gpu_env


def forked(act: Callable[[], object], said: Path) -> int:
    """Process id of a fork that calls `act` and ends with its code, after a traceback with 1; it prints into `said`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which do nothing here that a fork would wait for
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        output = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for number in (1, 2):
            os.dup2(output, number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        warnings.resetwarnings()  # errors are pytest's wish
        code = int(act() or 0)  # type: ignore[call-overload]
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # whatever comes of that, a child must not go on as the parent
            os._exit(code)


def code_of(pid: int) -> int:
    """Exit code of a fork, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        # Processes that were started apart have no random numbers in common.
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)
        return act()

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(number)) for number in range(processes)]
        left = [forked(lambda number=number: rank(number), file) for number, file in enumerate(files)]  # type: ignore[misc]
        codes = []
        try:
            while left:
                codes.append(code_of(left[0]))
                left.pop(0)
        finally:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        said = "".join(file.read_text() for file in files)
    assert codes == [0] * processes, said
    return said


def launch_environment(processes: int, config: Path, precision: str) -> dict[str, str]:
    """What `accelerate launch` tells the processes that it starts with a configuration."""
    flags = ["--config_file", str(config), "--num_processes", str(processes), "--main_process_port", "0"]
    asked = launch_command_parser().parse_args([*flags, "--mixed_precision", precision, "script.py"])
    told = prepare_multi_gpu_env(_validate_launch_command(asked)[0])
    return {name: value for name, value in told.items() if os.environ.get(name) != value}
