"""The console script `vla-zoo COMMAND ...`, and what every command shares: errors in one line, exit codes.

Exit codes: 0 done, 2 the user's input cannot work or the machine refuses (a full disk, no memory; one line says why),
130 interrupted, 141 the output has no reader any more (`| head`). Any other error is a fault
of this package and shows its traceback; a crash in native code (a simulator, a GL driver, gloo) shows the Python lines
at which it came. A launcher finds the message in torch's error file.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from vla_gym.errors import BadValue, LostRank, VLAZooError, one_line, os_reason, shortened, unknown_name
from vla_gym.system.limits import let_waiting_threads_sleep
from zoo.cli.arguments import VERSION_TEXT
from zoo.runs.progress import log_to_screen

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("zoo.doctor", "is all here that training needs, and does an expert solve its tasks"),
    "train": ("zoo.train", "train a policy with PPO or GRPO"),
    "collect": ("zoo.collect", "an expert's or a policy's episodes as a LeRobotDataset"),
    "sft": ("zoo.sft", "supervised fine-tuning on a dataset of demonstrations"),
    "envs": ("zoo.envs", "the environment ids, with their tasks and trained agents"),
    "runs": ("zoo.list_runs", "the runs under logs/, with their success and checkpoints"),
    "published": ("zoo.published", "published result rows, and what has been reproduced here"),
    "plan": ("zoo.plan", "what a run on so many ranks and so much memory comes to, without starting it"),
    "evaluate": ("zoo.evaluate", "success per task of a run or a policy, with confidence intervals"),
    "compare": ("zoo.compare", "two policies on the same start states: a paired test"),
    "enjoy": ("zoo.enjoy", "watch a trained agent in a window, or as an mp4 without a display"),
    "play": ("zoo.play", "type instructions to a robot in the browser and watch it live"),
    "record_video": ("zoo.record_video", "mp4 of a run's or a policy's episodes"),
    "serve": ("zoo.serve", "a policy for robots and other simulators, over WebSockets"),
    "optimize": ("zoo.optimize", "search for better settings with Optuna"),
    "plot": ("zoo.plot", "learning curves of runs, as an image"),
    "report": ("zoo.report", "one page about a run that opens without a network"),
    "completion": ("zoo.completion", "a script that completes vla-zoo's commands and flags in a shell"),
    "push_to_hub": ("zoo.push_to_hub", "publish a run on the Hugging Face Hub, with a model card"),
    "load_from_hub": ("zoo.load_from_hub", "fetch a published run as a run folder"),
}
"""Command -> (module with a `run(argv) -> int`, one line of help)."""
_LAUNCHER_SECONDS = 5.0
"""How long a rank that lost another one waits, so that the launcher finds the dead one first and names it."""


def guarded(run: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Call `run`, its log on the screen; a user's mistake becomes one line on stderr and exit code 2."""
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)
    log_to_screen()
    let_waiting_threads_sleep()
    try:
        code = run(sys.argv[1:] if argv is None else argv)
        print(end="", flush=True)
        return code
    except LostRank as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr, flush=True)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            time.sleep(_LAUNCHER_SECONDS)
            # The launcher is told of nobody that ended before: the lost one hangs, or was another machine's.
            write_error_file(one_line(str(error)))
        return 2
    except VLAZooError as error:
        # Before processes meet each of them sees the same mistake; afterwards it may be one rank's own.
        distributed = sys.modules.get("torch.distributed")
        met = distributed is not None and distributed.is_initialized()
        report_error(str(error), every_rank=met)
        if not met and int(os.environ.get("RANK", "0")):
            # The launcher ends the others once one has ended: rank 0, which prints for all, comes first.
            time.sleep(_LAUNCHER_SECONDS)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.EIO) and _reader_has_gone():
            return 141
        if message := _reason_of_machine(error):
            report_error(message, every_rank=True)
            return 2
        write_error_file(f"{type(error).__name__}: {error}")
        raise


def _reason_of_machine(error: Exception) -> str | None:
    """Return one line for what the machine refuses (files, memory); None for a fault of this package."""
    out_of_memory = isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
    )
    if isinstance(error, MemoryError) or out_of_memory:
        said = (str(error).strip().splitlines() or ["an allocation failed"])[0]
        return (
            f"not enough memory: {shortened(said, 200)}; take smaller batches (micro_batch_size of training), fewer "
            "environments (num_envs) or a smaller policy"
        )
    if not isinstance(error, OSError) or isinstance(error, ConnectionError):  # broken pipes are ours
        return None
    named = f"'{os.fsdecode(error.filename)}': " if isinstance(error.filename, str | bytes) else ""
    return named + os_reason(error)


def report_error(message: str, *, every_rank: bool) -> None:
    """Print `message` as one line, on rank 0 or `every_rank`, and write it to the launcher's error file."""
    line = one_line(message)
    rank = int(os.environ.get("RANK", "0"))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if every_rank or rank == 0:
        sys.stderr.write(f"error: rank {rank}: {line}\n" if several else f"error: {line}\n")
        sys.stderr.flush()
    write_error_file(line)


def write_error_file(message: str) -> None:
    """Write torch's error file, if a launcher asks for one: its summary, printed last, then has the first `message`."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not Path(path).exists():
        record = {"message": message, "timestamp": int(time.time())}
        Path(path).write_text(json.dumps(record), encoding="utf-8")


def check_alone(command: str) -> None:
    """Raise `BadValue` where a launcher has started several processes of a command that is one: each would do it all,
    into the same files."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadValue(f"{command} runs in one process; a launcher's several are for vla-zoo train and vla-zoo sft")


def quiet_torch_in_ranks() -> None:
    """Silence, in one of several processes, torch's warning about a setting of this package; call before its import."""
    if "RANK" in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _reader_has_gone() -> bool:
    """Whether the output has no reader any more; if so, Python's own last flush goes nowhere, too."""
    output = select.poll()
    output.register(1, 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: vla-zoo COMMAND ...   (vla-zoo COMMAND --help lists its options)\n")
        for name, (_, text) in COMMANDS.items():
            print(f"  {name:<14}{text}")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(VERSION_TEXT)
        return 0
    name = argv[0].replace("-", "_")
    if name not in COMMANDS:
        raise unknown_name("command", argv[0], COMMANDS)
    run: Callable[[Sequence[str]], int] = import_module(COMMANDS[name][0]).run
    return run(argv[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `vla-zoo`."""
    return guarded(_dispatch, argv)


if __name__ == "__main__":
    raise SystemExit(main())
