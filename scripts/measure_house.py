"""Measures of how far a reader has to walk in a checkout: modules, circles, and the files that a decision passes.

    python scripts/measure_house.py                     # this checkout
    python scripts/measure_house.py /path/to/checkout   # another commit, for before and after
    python scripts/measure_house.py --walk              # and the files of a decision and of an update, in order

The files of a decision are those of which a line is executed, in the learner's process and in the worker's, between two
`on_step` of a Stable-Baselines3 callback; of an update, between `on_rollout_end` and the next `on_rollout_start`. Both
are counted in a PPO run on Toy-Reach with one sub-environment.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from import_graph import PACKAGES, Arrow, arrows, circles, module_files, room

TRAIN = """
import sys, zoo.train
zoo.train.run(["--algo", "ppo", "--env", "Toy-Reach", "--num-envs", "2", "-n", "64", "--eval-episodes", "2",
    "--device", "cpu", "--num-threads", "1", "-f", "logs", "-params", "n_steps:2", "batch_size:4"])
names = [n for n, m in sys.modules.items() if n.startswith("zoo.") and not hasattr(m, "__path__")]
print(*sorted(names), file=sys.stderr)
"""
"""A small run, then the modules of zoo that it has imported; folders do not count."""

TRACER = """
import os, sys, time
root, out = os.environ["WALK_ROOT"], open(f"{os.environ['WALK_OUT']}/{os.getpid()}.txt", "w", buffering=1)
packages = tuple(os.path.join(root, package) + os.sep for package in ("vla_gym", "vla_policies", "zoo"))
last = None
def trace(frame, event, _):
    global last
    path = frame.f_code.co_filename
    if not path.startswith(packages):
        return None
    if path != last and event in ("call", "line") and frame.f_code.co_name != "<module>":
        out.write(f"{time.monotonic()} {path[len(root) + 1:]}\\n")
        last = path
    return trace
sys.settrace(trace)
def mark(word):
    global last
    out.write(f"{time.monotonic()} {word}\\n")
    last = None
sys.walk_mark = mark
"""
"""`sitecustomize` of every process: a line with time and file whenever another file's code begins or goes on;
main threads only (another one of a worker looks once a second whether its parent lives)."""

LEARN = """
import sys
from stable_baselines3.common.callbacks import BaseCallback
import vla_gym
from zoo import PPO
class Marks(BaseCallback):
    def _on_step(self): sys.walk_mark("STEP"); return True
    def _on_rollout_start(self): sys.walk_mark("ROLLOUT_START")
    def _on_rollout_end(self): sys.walk_mark("ROLLOUT_END")
envs = vla_gym.make_vec("Toy-Reach", num_envs=1, chunk=4, image_size=64, num_workers=1)
model = PPO("VLAPolicy", envs, n_steps=8, batch_size=4, n_epochs=1, seed=0, policy_kwargs={"backbone": "nano"})
model.learn(400, callback=Marks())
envs.close()
"""


def run_python(code: str, root: Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code against the packages of the checkout `root`, in `folder`."""
    paths = os.pathsep.join([*filter(None, [environ.pop("FIRST_PATH", "")]), str(root)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the run failed:\n{done.stderr[-3000:]}")
    return done


def modules_of_a_run(root: Path) -> list[str]:
    """Return the modules of zoo that a `zoo.train` run on Toy-Reach imports."""
    with tempfile.TemporaryDirectory() as folder:
        return run_python(TRAIN, root, Path(folder)).stderr.splitlines()[-1].split()


def walks(root: Path) -> tuple[list[str], list[str]]:
    """Return the files of a decision and of an update, in the order they are first executed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "out").mkdir()
        (folder / "sitecustomize.py").write_text(TRACER, encoding="utf-8")
        run_python(LEARN, root, folder, FIRST_PATH=name, WALK_ROOT=str(root), WALK_OUT=str(folder / "out"))
        lines: list[tuple[float, str]] = []
        for file in (folder / "out").iterdir():
            for line in file.read_text(encoding="utf-8").splitlines():
                moment, word = line.split(" ")
                lines.append((float(moment), word))
    decisions, updates = [], []
    files: dict[str, None] = {}
    begun = ""
    for _, word in sorted(lines):
        if word.endswith(".py"):
            files[word] = None
            continue
        if (begun, word) == ("STEP", "STEP"):
            decisions.append(tuple(files))
        elif (begun, word) == ("ROLLOUT_END", "ROLLOUT_START"):
            updates.append(tuple(files))
        begun, files = word, {}
    return usual(decisions), usual(updates)


def usual(found: list[tuple[str, ...]]) -> list[str]:
    """Return the commonest set of files (an episode's end passes some more), in the order of its first walk."""
    (commonest, _), *_ = Counter(frozenset(files) for files in found).most_common(1)
    return list(next(files for files in found if frozenset(files) == commonest))


def circle_count(found: list[Arrow]) -> dict[str, int]:
    """Count the circles between modules and between rooms: of what runs on loading, and of every import."""
    pairs = [(arrow.source, arrow.target) for arrow in found]
    rooms = {(room(source), room(target)) for source, target in pairs if room(source) != room(target)}
    return {
        "module circles, on loading": len(
            circles((arrow.source, arrow.target) for arrow in found if arrow.when == "load")
        ),
        "module circles, every import": len(circles(pairs)),
        "modules in those circles": sum(len(circle) for circle in circles(pairs)),
        "room circles, every import": len(circles(rooms)),
    }


def measures(root: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return all numbers, and the lists of files behind those of the walks."""
    files = module_files(root)
    sources = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    found = arrows(sources)
    run, (decision, update) = modules_of_a_run(root), walks(root)
    numbers = {
        "zoo modules a zoo.train run imports": len(run),
        "files one decision passes": len(decision),
        "files one update passes": len(update),
        "of them in zoo": sum(file.startswith("zoo/") for file in update),
        **circle_count(found),
        "TYPE_CHECKING imports": sum(arrow.when == "typing" for arrow in found),
        "Any in zoo": sum(
            isinstance(node, ast.Name) and node.id == "Any"
            for name, source in sources.items()
            if room(name).startswith("zoo")
            for node in ast.walk(ast.parse(source))
        ),
        "entries of zoo/ that are no command": len(entries(root)),
    }
    for package in PACKAGES:
        own = [source for name, source in sources.items() if name.split(".")[0] == package]
        numbers[f"modules of {package}"] = len(own)
        numbers[f"lines of {package}"] = sum(source.count("\n") for source in own)
    for unit in ("modules", "lines"):
        numbers[unit] = sum(numbers[f"{unit} of {package}"] for package in PACKAGES)
    return numbers, {"run": run, "decision": decision, "update": update}


def entries(root: Path) -> list[str]:
    """Return the folders and files directly in `zoo/`, without `__init__.py` and the command modules."""
    found = []
    for path in sorted((root / "zoo").iterdir()):
        if path.name.startswith(("__", ".")):
            continue
        if path.suffix == ".py" and '__name__ == "__main__"' not in path.read_text(encoding="utf-8"):
            found.append(path.name)
        elif path.is_dir() and any(path.glob("*.py")):
            found.append(path.name + "/")
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--walk", action="store_true", help="name the files of the walks, too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    numbers, lists = measures(args.checkout.resolve())
    if args.json:
        print(json.dumps({**numbers, **(lists if args.walk else {})}, indent=2))
        return 0
    for name, number in numbers.items():
        print(f"{name:36} {number:7,}")
    for name, files in lists.items() if args.walk else ():
        print(f"\n{name}:", *files, sep="\n  ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
