"""Kill runs at random moments, go on with them, and compare what they come to with runs that were never killed.

    python scripts/kill_and_resume.py --kills 10                    # every case, ten kills each
    python scripts/kill_and_resume.py --kills 20 --env LIBERO       # cases whose name begins so
    python scripts/kill_and_resume.py --list

A case is played once without kills; then again and again with a SIGKILL at a random moment (drawn by `--seed`) between
its start and its end, each time going on with `-i` (`zoo.collect`: the same command again) where a checkpoint was
left, and anew where none was. What is compared of a run that ended: weights, optimiser, counters and random generators
of the last checkpoint and of `best/`, every metric but times, every training episode, the evaluations; of a dataset:
its rows. They must be equal bit for bit. No process, lock or half-written file may be left.

Processes are forked from this one, which has imported what they need, so that a kill costs no imports; two-process
cases are started by `accelerate launch`. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
SHORT = ("--seed", "3", "--device", "cpu", "--num-threads", "1", "--no-eval-video")
TINY = ("policy_kwargs:{backbone_kwargs: {size: tiny}}",)
SIZES = ("image_size:64", "chunk:8", "num_workers:1", *TINY)
MOST_SECONDS = 1800.0
_DONE = "steps already: give a larger total"


@dataclass(frozen=True)
class Case:
    """A command that can be killed and gone on with."""

    name: str
    command: str
    """`train`, `sft` or `collect`."""
    arguments: tuple[str, ...]
    processes: int = 1


def _train(algo: str, env: str, steps: int, every: int, *params: str, evaluated: int = 0) -> tuple[str, ...]:
    words = ("--algo", algo, "--env", env, *SHORT, "-n", str(steps), "--save-freq", str(every))
    return (*words, "--eval-freq", str(3 * every), "--eval-episodes", str(evaluated), "-params", *params)


def _cases(demonstrations: Path) -> list[Case]:
    ppo, grpo = ("n_steps:8", "batch_size:32"), ("group_size:4", "batch_size:32")
    toy = ("num_envs:8", "num_workers:0", *TINY)
    acting = ("--env", "Toy-Reach", "--policy", "nano", "--stochastic", "--keep-failures", "--device", "cpu")
    sft = ("--env", "Toy-Reach", *SHORT[:-1], "--dataset", str(demonstrations), "-n", "24", "--save-freq", "3")
    few_ppo = ("n_steps:4", "batch_size:8", "num_envs:2", *SIZES)
    few_grpo = ("group_size:2", "batch_size:8", "num_envs:2", "max_barren_episodes:1000", *SIZES)
    return [
        Case("Toy-ppo", "train", _train("ppo", "Toy-Reach", 2000, 200, *ppo, *toy, evaluated=2)),
        Case("Toy-grpo", "train", _train("grpo", "Toy-Reach", 2000, 200, *grpo, *toy, evaluated=2)),
        Case("Toy-sft", "sft", (*sft, "--eval-freq", "8", "--eval-episodes", "2", "-params", "num_workers:0", *TINY)),
        Case("Toy-collect", "collect", (*acting, "-n", "100", "--num-envs", "4", "-params", "num_workers:0")),
        Case("Toy-2-ppo", "train", _train("ppo", "Toy-Reach", 1500, 200, *ppo, *toy, evaluated=2), processes=2),
        Case("LIBERO-ppo", "train", _train("ppo", "LIBERO-Spatial", 256, 64, *few_ppo)),
        Case("LIBERO-grpo", "train", _train("grpo", "LIBERO-Spatial", 900, 440, *few_grpo)),
        Case("ManiSkill-ppo", "train", _train("ppo", "ManiSkill/PushCube", 256, 64, *few_ppo)),
        Case("ManiSkill-grpo", "train", _train("grpo", "ManiSkill/PushCube", 500, 100, *few_grpo)),
        Case("MetaWorld-ppo", "train", _train("ppo", "MetaWorld/window-close", 256, 64, *few_ppo)),
    ]


# A process -------------------------------------------------------------------------------------------


class Process:
    """One start of a case in `folder`, in a session of its own; its output goes to `log`."""

    def __init__(self, case: Case, folder: Path, log: Path) -> None:
        argv = _argv(case, folder)
        self._log = log
        self.pid = _launched(case, argv, log) if case.processes > 1 else _forked(argv, log)
        self.began = time.monotonic()
        self.status: int | None = None

    def wait(self, until: float) -> bool:
        """Whether it ended within `until` seconds of its start."""
        while time.monotonic() - self.began < until:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.status = os.waitstatus_to_exitcode(status)
                return True
            time.sleep(0.01)
        return False

    def kill(self, *, alone: bool) -> None:
        """SIGKILL: to it `alone`, as when memory runs out, or with its whole session; no other process may stay."""
        if alone:
            os.kill(self.pid, signal.SIGKILL)
        else:
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        deadline = time.monotonic() + 60.0
        while members(self.pid):
            if time.monotonic() > deadline:
                raise SystemExit(f"processes {members(self.pid)} outlived the kill of {self.pid}")
            time.sleep(0.05)

    def check(self) -> None:
        """Exit unless it ended well, or was killed after its last file but one and has nothing left to do."""
        said = self._log.read_text(errors="replace")[-3000:]
        if self.status != 0 and _DONE not in said:  # which a launcher repeats in lines of its own
            raise SystemExit(f"ended with {self.status}:\n{said}")


def _forked(argv: Sequence[str], log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        with log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        from zoo.cli.main import main as command_line

        code = command_line(list(argv))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _launched(case: Case, argv: Sequence[str], log: Path) -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    config = ROOT / "hyperparams" / "accelerate" / "cpu.yaml"
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config))
    ranks = ("--num_processes", str(case.processes), "--main_process_port", str(port))
    with log.open("ab") as file:
        return subprocess.Popen(
            [*launcher, *ranks, "-m", f"zoo.{argv[0]}", *argv[1:]],
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        ).pid


def members(session: int) -> list[int]:
    """Running processes of a session, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _argv(case: Case, folder: Path) -> list[str]:
    """The command's words: those that go on where there is something to go on with."""
    if case.command == "collect":
        return ["collect", *case.arguments, "-o", str(folder / "dataset")]
    if (run := _begun(folder)) is not None:
        return [case.command, "-i", str(run), "--device", "cpu", "--num-threads", "1"]
    shutil.rmtree(folder, ignore_errors=True)
    return [case.command, *case.arguments, "-f", str(folder)]


def _begun(folder: Path) -> Path | None:
    """The run folder in which there is a checkpoint, complete or set aside."""
    return next((run for run in folder.glob("*/*") if any((run / "checkpoints").glob("*step_*"))), None)


# What it came to --------------------------------------------------------------------------------------


def outcome(case: Case, folder: Path) -> dict[str, str]:
    """Name -> hash of everything that a kill must not change; exits for what is half written."""
    if leftovers := [str(path) for pattern in (".*partial-*", ".*replaced-*") for path in folder.rglob(pattern)]:
        raise SystemExit(f"left behind: {leftovers}")
    if case.command == "collect":
        return {str(path.relative_to(folder)): _rows(path) for path in sorted(folder.rglob("*.parquet"))}
    (run,) = [path.parent for path in folder.glob("*/*/config.yml")]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if not key.startswith("time")} for line in lines]
    found = {"metrics.jsonl": _sha256(json.dumps(metrics, sort_keys=True).encode())}
    if (run / "monitor.csv").is_file():
        with (run / "monitor.csv").open(newline="") as file:
            rows = [{key: value for key, value in row.items() if key != "t"} for row in _after_heading(file)]
        found["monitor.csv"] = _sha256(json.dumps(rows).encode())
    kept = [run / "best", *_last_checkpoint(run)]
    for path in (run / "evaluations.npz", *(file for part in kept for file in sorted(part.rglob("*")))):
        if path.name == "evaluations.npz" and path.is_file():
            import numpy as np

            with np.load(path) as arrays:
                found[path.name] = _sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays)))
        elif path.name == "training_state.json":
            found[str(path.relative_to(run))] = _sha256(json.dumps(_timeless(json.loads(path.read_text()))).encode())
        elif path.is_file():
            found[str(path.relative_to(run))] = _sha256(path.read_bytes())
    return found


def _timeless(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's state without seconds, without where the process began, and without the hash over these."""
    episodes = [{key: value for key, value in one.items() if key != "t"} for one in state.get("episodes", [])]
    hashes = {name: value for name, value in state["sha256"].items() if name != "training_state.json"}
    counters = {key: value for key, value in state["counters"].items() if key != "_num_timesteps_at_start"}
    return {**state, "episodes": episodes, "sha256": hashes, "counters": counters}


def _last_checkpoint(run: Path) -> list[Path]:
    folders = sorted((run / "checkpoints").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    return folders[-1:]


def _after_heading(file: object) -> csv.DictReader[str]:
    next(file)  # type: ignore[call-overload]  # when the run began
    return csv.DictReader(file)  # type: ignore[arg-type]


def _rows(path: Path) -> str:
    import pyarrow.parquet

    return _sha256(json.dumps(pyarrow.parquet.read_table(path).to_pylist(), default=str).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# The kills --------------------------------------------------------------------------------------------


def play(case: Case, folder: Path, kills: int, draw: random.Random) -> str:
    """Kill a case so many times; return a line about it, or exit where an ended run differs."""
    reference, attempt, log = folder / "reference", folder / "attempt", folder / "log"
    folder.mkdir()
    whole = Process(case, reference, log)
    whole.wait(MOST_SECONDS)
    whole.check()
    duration = time.monotonic() - whole.began
    expected = outcome(case, reference)
    done = ended = went_on = 0
    under_way = True
    while done < kills or under_way:
        held = (attempt / "dataset").exists() if case.command == "collect" else _begun(attempt) is not None
        process = Process(case, attempt, log)
        went_on += held
        under_way = not process.wait(draw.uniform(0.1, 1.1) * duration if done < kills else MOST_SECONDS)
        if under_way:
            process.kill(alone=case.processes == 1 and draw.random() < 0.5)
            done += 1
            continue
        process.check()
        found = outcome(case, attempt)
        if differ := [name for name in {**expected, **found} if expected.get(name) != found.get(name)]:
            raise SystemExit(f"{case.name}: after {done} kills differ {sorted(differ)} in {attempt}")
        ended += 1
        shutil.rmtree(attempt)
    parts = f"{len(expected)} hashes each"
    return f"{case.name:15} {done:3} kills, {went_on:3} went on, {ended:2} runs ended, all equal ({parts})"


def main() -> int:
    """Play the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="kills of every case")
    parser.add_argument("--env", nargs="+", default=[""], help="cases whose name begins with one of these")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments")
    parser.add_argument("--folder", type=Path, help="where to work; kept (default: a temporary folder)")
    parser.add_argument("--list", action="store_true", help="name the cases")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="kill_and_resume_"))
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case for case in _cases(folder / "demonstrations") if case.name.startswith(tuple(args.env))]
    if args.list or not cases:
        print("\n".join(case.name for case in _cases(folder)))
        return 0 if args.list else 2
    _import_all()
    if any(case.command == "sft" for case in cases):
        recording = next(case for case in _cases(folder) if case.command == "collect")
        one = Process(recording, folder / "recorded", folder / "log")
        one.wait(MOST_SECONDS)
        one.check()
        (folder / "recorded" / "dataset").rename(folder / "demonstrations")
    total = 0
    for case in cases:
        draw = random.Random(f"{args.seed} {case.name}")  # noqa: S311
        print(play(case, folder / case.name, args.kills, draw), flush=True)
        total += args.kills
    print(f"{total} kills over {len(cases)} cases, all equal", flush=True)
    if args.folder is None:
        shutil.rmtree(folder)
    return 0


def _import_all() -> None:
    """Import what the commands import, without starting a thread or a simulator."""
    import torch
    import torch.utils.tensorboard

    torch.set_num_threads(1)


if __name__ == "__main__":
    raise SystemExit(main())
