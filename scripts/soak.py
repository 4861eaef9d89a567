"""Whether long runs grow: main memory and open descriptors of all processes over the episodes they have played.

    python scripts/soak.py                          # every case at its full length
    python scripts/soak.py --cases LIBERO --scale 0.1

Cases: `Toy`, training as users start it; `LIBERO`, episodes of all ten tasks in turn, cut after one chunk of 8 steps,
so that every reset loads another task; `serving`, a server and its clients' evaluations one after another. Memory is
anonymous and shared memory, where pages that processes share count once; pages of files (libraries) are left out: their
share grows whenever another process on the machine that uses them ends. It is looked at where a case says that episodes
were played, so that two looks see the same state and not, say, two scenes of different size. The slope is a
least-squares line through the looks after the first third, with a 95 % interval from ten blocks of them. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import math
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
Counter = Synchronized  # of episodes
FLAGS = ("--num-threads", "1", "--device", "cpu")
_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "32768", "MALLOC_ARENA_MAX": "1"}
"""Settings with which glibc returns freed memory at once, so that a look sees memory in use."""
_LULL = 3.0
"""Seconds a case waits for a look."""
_OWN = ("Pss_Anon:", "Pss_Shmem:")
_BLOCKS = 10
_T_975 = 2.306
"""Student's t with `_BLOCKS` - 2 degrees of freedom."""


def look(done: Counter[int], played: int) -> None:
    """Say that more episodes were played, and wait for a look.

    What the allocator keeps of freed memory is given back first: how much that is depends on what came last.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    done.value += played
    time.sleep(_LULL)


def toy(episodes: int, done: Counter[int], folder: Path) -> None:
    """`zoo.train` on Toy-Reach, whose episodes soon have three or four simulator steps."""
    from zoo.cli.main import main

    words = ["--algo", "ppo", "--env", "Toy-Reach", "--policy", "nano", "-n", str(4 * episodes), "--eval-freq", "0"]
    settings = ["num_workers:0", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
    main(["train", *words, "--eval-episodes", "1", *FLAGS, "-f", str(folder), "-params", *settings])


def libero(episodes: int, done: Counter[int], folder: Path) -> None:
    """Resets of two environments, both to the next task, and one chunk after each.

    Looked at after every round of the tasks, when the same ones are kept loaded.
    """
    import vla_gym

    with contextlib.closing(vla_gym.make_vec("LIBERO-Spatial", 2, chunk=8, image_size=64, num_workers=0)) as envs:
        while done.value < episodes:
            for task in range(10):
                envs.reset(options={"task_id": task, "trial_id": done.value // 20 % 50})
                envs.step(envs.action_space.sample())
            look(done, 20)


def serving(episodes: int, done: Counter[int], folder: Path) -> None:
    """A server in a process of its own, and evaluations of 150 episodes that connect to it one after another."""
    from zoo.cli.main import main

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tiny = ["-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
    serve = ["serve", "--policy", "nano", "--env", "Toy-Reach", "--port", str(port), "--device", "cpu", *tiny]
    server = multiprocessing.get_context("spawn").Process(target=main, args=(serve,), daemon=True)
    server.start()
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.2)
    played = ["--env", "Toy-Reach", "--num-envs", "10", "-o", str(folder / "results.json")]
    while done.value < episodes:
        if main(["evaluate", "--policy", f"ws://127.0.0.1:{port}", *played, "-params", "num_workers:0"]):
            raise SystemExit("an evaluation failed")
        look(done, 150)
    server.terminate()


@dataclass(frozen=True)
class Case:
    """Something that plays episodes for long."""

    play: Callable[[int, Counter[int], Path], None]
    episodes: int
    """At full length."""


CASES = {"Toy": Case(toy, 60_000), "LIBERO": Case(libero, 2_400), "serving": Case(serving, 6_000)}


@dataclass(frozen=True)
class Sample:
    """One look at the processes."""

    episodes: int
    """Played so far."""
    memory: float
    """Of all processes together, MB."""
    descriptors: int
    """Open ones, all processes together."""


def processes(root: int) -> list[int]:
    """A process and its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for one in found:
        found += [pid for pid, parent in parents.items() if parent == one]
    return found


def sample(root: int, episodes: int) -> Sample:
    """Look at a process and its descendants; those that end meanwhile are left out."""
    memory, descriptors = 0.0, 0
    for pid in processes(root):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            memory += sum(float(line.split()[1]) for line in lines if line.startswith(_OWN)) * 1024 / 1e6
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(episodes, memory, descriptors)


def watch(case: Case, episodes: int, every: float) -> list[Sample]:
    """Play a case and look at it every so many seconds; exits where it fails."""
    context = multiprocessing.get_context("spawn")
    os.environ.update(_RETURNED)
    done: Counter[int] = context.Value("q", 0)
    samples = []
    with tempfile.TemporaryDirectory(prefix="soak_") as folder:
        child = context.Process(target=case.play, args=(episodes, done, Path(folder)))
        with contextlib.redirect_stdout(sys.stderr):
            child.start()
        while child.is_alive():
            child.join(every)
            monitor = next(Path(folder).glob("*/*/monitor.csv"), None)
            played = done.value if monitor is None else max(monitor.read_bytes().count(b"\n") - 2, 0)
            if child.is_alive() and played > (samples[-1].episodes if samples else 0):
                samples.append(one := sample(child.pid or 0, played))
                print(f"\r{played} episodes, {one.memory:.0f} MB", end="", file=sys.stderr)
    if child.exitcode or not samples:
        raise SystemExit(f"it ended with exit code {child.exitcode} after {done.value} episodes")
    return samples


def slope(samples: Sequence[Sample]) -> tuple[float, float]:
    """MB per 1,000 episodes, and half of the width of its 95 % interval."""
    steady = [one for one in samples if one.episodes >= samples[-1].episodes / 3]
    size = len(steady) / _BLOCKS
    blocks = [steady[round(k * size) : round((k + 1) * size)] for k in range(_BLOCKS)]
    if not all(blocks):
        raise SystemExit(f"{len(steady)} samples are too few for a slope: more episodes, or a smaller --every")
    x = [statistics.fmean(one.episodes for one in block) / 1000 for block in blocks]
    y = [statistics.fmean(one.memory for one in block) for block in blocks]
    line = statistics.linear_regression(x, y)
    errors = sum((b - line.intercept - line.slope * a) ** 2 for a, b in zip(x, y, strict=True)) / (_BLOCKS - 2)
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    return line.slope, _T_975 * math.sqrt(errors / spread)


def main() -> int:
    """Play the cases; a line each. Exit code 1 where memory grows by more than 1 MB per 1,000 episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="times the episodes of every case")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks, at most 1")
    args = parser.parse_args()
    grows = False
    for name in args.cases:
        case = CASES[name]
        began = time.monotonic()
        samples = watch(case, round(args.scale * case.episodes), args.every)
        rate, half = slope(samples)
        steady = [one.descriptors for one in samples if one.episodes >= samples[-1].episodes / 3]
        print(
            f"{name:8} {samples[-1].episodes:6} episodes in {time.monotonic() - began:5.0f} s, "
            f"{samples[-1].memory:6.0f} MB at the end, {rate:+.2f} +- {half:.2f} MB per 1,000 episodes, "
            f"descriptors {min(steady)} to {max(steady)}",
            flush=True,
        )
        grows = grows or rate - half > 1
    return int(grows)


if __name__ == "__main__":
    raise SystemExit(main())
