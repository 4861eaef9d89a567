"""The console script `vla-zoo COMMAND ...`, and what every command shares: errors in one line, exit codes.

Exit codes: 0 done, 2 the user's input cannot work (one line says why), 130 interrupted, 141 nobody reads the output
any more (`| head`). Anything else is a fault of ours and shows its traceback.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from vla_gym.errors import LostRank, VLAZooError, unknown_name
from zoo.cli.failures import leave_for_launcher, tell, wait_for_the_launcher
from zoo.runs.progress import log_to_screen

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("zoo.doctor", "is all here that training needs, and does an expert solve its tasks"),
    "train": ("zoo.train", "train a policy with PPO or GRPO"),
    "collect": ("zoo.collect", "an expert's episodes as a LeRobotDataset"),
    "sft": ("zoo.sft", "supervised fine-tuning on a dataset of demonstrations"),
    "plan": ("zoo.plan", "what a run on so many ranks and so much memory comes to, without starting it"),
    "evaluate": ("zoo.evaluate", "success per task of a run or a policy, with confidence intervals"),
    "compare": ("zoo.compare", "two policies on the same start states: a paired test"),
    "enjoy": ("zoo.enjoy", "watch a trained agent in a window, or as an mp4 without a display"),
    "record_video": ("zoo.record_video", "mp4 of a run's or a policy's episodes"),
    "optimize": ("zoo.optimize", "search for better settings with Optuna"),
    "plot": ("zoo.plot", "learning curves of runs, as a picture"),
    "report": ("zoo.report", "one page about a run that opens without a network"),
    "push_to_hub": ("zoo.push_to_hub", "publish a run on the Hugging Face Hub, with a model card"),
    "load_from_hub": ("zoo.load_from_hub", "fetch a published run as a run folder"),
}
"""Command -> (module with a `run(argv) -> int`, one line of help)."""


def guarded(run: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Call `run`, its log on the screen; a user's mistake becomes one line on stderr and exit code 2."""
    log_to_screen()
    try:
        code = run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except LostRank as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        wait_for_the_launcher()
        return 2
    except VLAZooError as error:
        # Before processes meet each of them sees the same mistake; afterwards it may be one's own.
        tell(str(error), everywhere=_met())
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 141
        leave_for_launcher(f"{type(error).__name__}: {error}")
        raise


def hush_ranks() -> None:
    """Before torch is imported in one of several processes: without its warning, in each, about a setting of ours."""
    if "RANK" in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _nobody_reads() -> bool:
    """Has the reader of our output gone? Then the rest of it goes nowhere, at Python's own last flush too."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _met() -> bool:
    process_group = sys.modules.get("zoo.distributed.process_group")
    return process_group is not None and process_group.is_initialized()


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: vla-zoo COMMAND ...   (vla-zoo COMMAND --help lists its options)\n")
        for name, (_, text) in COMMANDS.items():
            print(f"  {name:<14}{text}")
        return 0 if argv else 2
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
