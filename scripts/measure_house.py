"""Measure how much there is to read in a checkout, and hold it to limits.

    python scripts/measure_house.py                     # this checkout
    python scripts/measure_house.py /path/to/checkout   # another one, for before and after
    python scripts/measure_house.py --walk              # and the files of a decision and of an update, in order
    python scripts/measure_house.py --check             # exit code 1 where a number is above its limit
    python scripts/measure_house.py --write             # set `LIMITS` to today's numbers, or to the goals that are met

`make lint` checks. Numbers may only fall: `--write` follows them. Where it raises one, the commit says what that buys.

Statements are `ast.stmt` nodes, so that a denser line changes nothing. The files of a decision are those of which a
line is executed, in the learner's process and in the worker's, between two `on_step` of a callback; of
an update, between `on_rollout_end` and the next `on_rollout_start`. Both are counted in a PPO run on Toy-Reach with one
sub-environment. The records of a decision are the dataclasses of `vla_gym` and `zoo` that are made meanwhile: on the
way from the simulator to the buffer, and the command, its episode's statistics and its start state.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from import_graph import PACKAGES, arrows, circles, module_files, package_of

LIMITS = {
    "statements": (31_660, 25_500),
    "lines": (50_879, 41_000),
    "modules": (285, 270),
    "statements of vla_gym": (8_081, 6_700),
    "statements of vla_policies": (7_661, 6_500),
    "statements of zoo": (15_918, 12_300),
    "calls from main to learn": (4, 4),
    "files one decision passes": (25, 22),
    "zoo files one update passes": (13, 8),
    "records of a decision": (8, 6),
    "zoo modules that zoo.train loads": (58, 50),
    "constructor parameters of PPO": (42, 42),
    "constructor parameters of GRPO": (34, 34),
    "places of a setting": (3, 2),
    "opens of a policy folder": (1, 1),
    "raise": (754, 650),
    "check_* functions": (105, 90),
    "Any in zoo": (300, 300),
    "TYPE_CHECKING imports": (16, 10),
    "class names used twice": (9, 5),
    "docstrings beginning What, That, Those": (0, 0),
    "lines of tests": (38_295, 34_000),
    "words of docs": (32_000, 32_000),
    "entries of CHANGELOG": (60, 60),
    "import circles": (0, 0),
}
"""Measure -> the most that `--check` allows, and what it should come to."""
TRACED = ("files one decision passes", "zoo files one update passes", "zoo modules that zoo.train loads")
"""Measures of a run, which may differ by one from run to run."""

TRAIN = """
import runpy, sys, traceback
import zoo
import zoo.algorithms.ppo
calls = []
def learn(self, *args, **kwargs):
    frames = [frame.f_code for frame, _ in traceback.walk_stack(None) if "/zoo/" in frame.f_code.co_filename]
    calls.append(["PPO.learn", *(code.co_qualname for code in frames if code.co_name != "<module>")])
    return original(self, *args, **kwargs)
original = zoo.algorithms.ppo.PPO.learn
zoo.algorithms.ppo.PPO.learn = learn
sys.argv = ["zoo.train", "--algo", "ppo", "--env", "Toy-Reach", "--num-envs", "2", "-n", "64", "--eval-episodes", "2",
    "--device", "cpu", "--num-threads", "1", "-f", "logs", "-params", "n_steps:2", "batch_size:4"]
try:
    runpy.run_module("zoo.train", run_name="__main__")
except SystemExit:
    pass
names = [n for n, m in sys.modules.items() if n.startswith("zoo.") and not hasattr(m, "__path__")]
print(len(calls[0]), *sorted(names), file=sys.stderr)
"""
"""A small run; then our functions from the command to `learn`, counted, and the modules of zoo that were imported."""

EVALUATE = """
import os, sys, zoo.evaluate
from zoo.cli.main import guarded
folder = os.path.realpath("logs/ppo/Toy-Reach_1/best")
opens = []
def hook(event, args):
    if event == "open" and isinstance(args[0], str) and os.path.realpath(args[0]) == folder + "/config.json":
        opens.append(args[0])
sys.addaudithook(hook)
guarded(zoo.evaluate.run, ["--policy", folder, "--env", "Toy-Reach", "--eval-episodes", "2", "--num-envs", "1",
    "--device", "cpu", "--num-threads", "1"])
print(len(opens), file=sys.stderr)
"""
"""An evaluation of that run's best policy; then how often its configuration was opened."""

TRACER = """
import dataclasses, os, sys, time
root, out = os.environ["WALK_ROOT"], open(f"{os.environ['WALK_OUT']}/{os.getpid()}.txt", "w", buffering=1)
packages = tuple(os.path.join(root, package) + os.sep for package in ("vla_gym", "vla_policies", "zoo"))
last = None
def trace(frame, event, _):
    global last
    code = frame.f_code
    if event == "call" and code.co_name in ("__init__", "__create_fn__") and code.co_filename == "<string>":
        record = type(frame.f_locals.get("self"))
        if record.__module__.split(".")[0] in ("vla_gym", "zoo"):
            out.write(f"{time.monotonic()} record:{record.__module__}.{record.__name__}\\n")
    path = code.co_filename
    if not path.startswith(packages):
        return None
    if path != last and event in ("call", "line") and code.co_name != "<module>":
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
import inspect, sys
from stable_baselines3.common.callbacks import BaseCallback
import vla_gym
from zoo import GRPO, PPO
class Marks(BaseCallback):
    def _on_step(self): sys.walk_mark("STEP"); return True
    def _on_rollout_start(self): sys.walk_mark("ROLLOUT_START")
    def _on_rollout_end(self): sys.walk_mark("ROLLOUT_END")
envs = vla_gym.make_vec("Toy-Reach", num_envs=1, chunk=4, image_size=64, num_workers=1)
model = PPO("VLAPolicy", envs, n_steps=8, batch_size=4, n_epochs=1, seed=0, policy_kwargs={"backbone": "nano"})
model.learn(400, callback=Marks())
envs.close()
print(len(inspect.signature(PPO).parameters), len(inspect.signature(GRPO).parameters), file=sys.stderr)
"""


def run_python(code: str, root: Path, folder: Path, **environ: str) -> str:
    """Run code against the packages of the checkout `root`, in `folder`; return the last line on stderr."""
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
    return done.stderr.splitlines()[-1]


def runs(root: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the numbers that take a run, and the lists of files and modules behind them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls, *modules = run_python(TRAIN, root, folder).split()
        opens = run_python(EVALUATE, root, folder)
        (folder / "out").mkdir()
        (folder / "sitecustomize.py").write_text(TRACER, encoding="utf-8")
        parameters = run_python(LEARN, root, folder, FIRST_PATH=name, WALK_ROOT=str(root), WALK_OUT=str(folder / "out"))
        lines: list[tuple[float, str]] = []
        for file in (folder / "out").iterdir():
            for line in file.read_text(encoding="utf-8").splitlines():
                moment, word = line.split(" ")
                lines.append((float(moment), word))
    decisions, updates = [], []
    passed: dict[str, None] = {}
    begun = ""
    for _, word in sorted(lines):
        if word.endswith(".py") or word.startswith("record:"):
            passed[word] = None
            continue
        if (begun, word) == ("STEP", "STEP"):
            decisions.append(tuple(passed))
        elif (begun, word) == ("ROLLOUT_END", "ROLLOUT_START"):
            updates.append(tuple(passed))
        begun, passed = word, {}
    decision, update = usual(decisions), usual(updates)
    lists = {
        "run": modules,
        "decision": [file for file in decision if file.endswith(".py")],
        "records": [word.removeprefix("record:") for word in decision if word.startswith("record:")],
        "update": [file for file in update if file.endswith(".py")],
    }
    ppo, grpo = parameters.split()
    return {
        "calls from main to learn": int(calls),
        "files one decision passes": len(lists["decision"]),
        "zoo files one update passes": sum(file.startswith("zoo/") for file in lists["update"]),
        "records of a decision": len(lists["records"]),
        "zoo modules that zoo.train loads": len(modules),
        "constructor parameters of PPO": int(ppo),
        "constructor parameters of GRPO": int(grpo),
        "opens of a policy folder": int(opens),
    }, lists


def usual(found: list[tuple[str, ...]]) -> list[str]:
    """Return the commonest set of files (an episode's end passes some more), in the order of its first walk."""
    (commonest, _), *_ = Counter(frozenset(files) for files in found).most_common(1)
    return list(next(files for files in found if frozenset(files) == commonest))


def nodes_of(trees: dict[str, ast.Module], package: str = "") -> Iterator[ast.AST]:
    """Yield the nodes of all modules of a package, or of all three."""
    for name, tree in trees.items():
        if name.split(".")[0].startswith(package):
            yield from ast.walk(tree)


def counts(root: Path) -> dict[str, int]:
    """Return the numbers that are read off the text."""
    sources = {name: path.read_text(encoding="utf-8") for name, path in module_files(root).items()}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    found = arrows(sources)
    pairs = [(arrow.source, arrow.target) for arrow in found]
    rooms = {
        (package_of(source), package_of(target)) for source, target in pairs if package_of(source) != package_of(target)
    }
    classes = Counter(node.name for node in nodes_of(trees) if isinstance(node, ast.ClassDef))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    documented = functions | ast.ClassDef | ast.Module
    docstrings = [ast.get_docstring(node) or "" for node in nodes_of(trees) if isinstance(node, documented)]
    docstrings += [
        node.value.value
        for node in nodes_of(trees)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    numbers = {
        "statements": sum(isinstance(node, ast.stmt) for node in nodes_of(trees)),
        "lines": sum(source.count("\n") for source in sources.values()),
        "modules": len(sources),
    }
    for package in PACKAGES:
        numbers[f"statements of {package}"] = sum(isinstance(node, ast.stmt) for node in nodes_of(trees, package))
    pages = [page for page in (root / "docs").rglob("*.md") if not {"_build", "generated"} & set(page.parts)]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    return numbers | {
        "places of a setting": places_of_a_setting(root, trees),
        "raise": sum(isinstance(node, ast.Raise) for node in nodes_of(trees)),
        "check_* functions": sum(
            isinstance(node, functions) and node.name.lstrip("_").startswith("check") for node in nodes_of(trees)
        ),
        "Any in zoo": sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes_of(trees, "zoo")),
        "TYPE_CHECKING imports": sum(arrow.when == "typing" for arrow in found),
        "class names used twice": sum(times > 1 for times in classes.values()),
        "docstrings beginning What, That, Those": sum(
            bool(re.match(r"(What|That|Those)\b", text.strip())) for text in set(docstrings)
        ),
        "lines of tests": sum(
            path.read_text(encoding="utf-8").count("\n") for path in sorted((root / "tests").rglob("*.py"))
        ),
        "words of docs": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "entries of CHANGELOG": len(re.findall(r"^- ", changelog, flags=re.M)),
        "import circles": len(circles(pairs)) + len(circles(rooms)),
    }


def places_of_a_setting(root: Path, trees: dict[str, ast.Module]) -> int:
    """Return the most places where one setting that PPO alone has stands.

    Fields and annotations of classes, parameters of constructors, `:param:` lines, rows of tables, tuned values.
    """
    names = ("critic_epochs", "value_clip", "rounds_per_update", "huber_delta", "critic_warmup_updates")
    pages = [page.read_text(encoding="utf-8") for page in (root / "docs").glob("*.md")]
    tuned = "\n".join(path.read_text(encoding="utf-8") for path in (root / "hyperparams").glob("*.yml"))
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    places = Counter[str]()
    for name in names:
        places[name] += any(re.search(rf"^\| `{name}`", page, flags=re.M) for page in pages)
        places[name] += bool(re.search(rf"\b{name}:", tuned)) + (f"`{name}" in changes)
    algorithms = (tree for name, tree in trees.items() if name.startswith(("zoo.config", "zoo.algorithms")))
    for node in (node for tree in algorithms for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            places.update(field.id for field in fields if isinstance(field, ast.Name) and field.id in names)
            described = re.findall(r":param (\w+):", ast.get_docstring(node) or "")
            places.update(name for name in described if name in names)
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            places.update(one.arg for one in (*node.args.args, *node.args.kwonlyargs) if one.arg in names)
    return max(places.values())


def main() -> int:
    """Print the table, and compare it with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--check", action="store_true", help="exit code 1 where a number is above its limit")
    parser.add_argument("--static", action="store_true", help="only what is read off the text, without a run")
    parser.add_argument("--walk", action="store_true", help="name the files behind the numbers of a run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="set the limits in this file")
    args = parser.parse_args()
    root = args.checkout.resolve()
    of_runs, lists = ({}, {}) if args.static else runs(root)
    numbers = {**counts(root), **of_runs}
    if args.json:
        print(json.dumps({**numbers, **(lists if args.walk else {})}, indent=2))
        return 0
    print(f"{'':40}{'now':>8}{'limit':>8}{'goal':>8}")
    risen = [name for name, number in numbers.items() if number > LIMITS[name][0]]
    for name, number in numbers.items():
        limit, goal = LIMITS[name]
        print(f"{name:40}{number:8,}{limit:8,}{goal:8,}{'  too many' if name in risen else ''}")
    for name, files in lists.items() if args.walk else ():
        print(f"\n{name}:", *files, sep="\n  ")
    if args.write:
        text = Path(__file__).read_text(encoding="utf-8")
        for name, number in numbers.items():
            limit = max(number + (name in TRACED), LIMITS[name][1])
            text = re.sub(rf'("{re.escape(name)}": \()[\d_]+', rf"\g<1>{limit:_}", text)
        Path(__file__).write_text(text, encoding="utf-8")
    if args.check and risen:
        print(f"\n{', '.join(risen)}: above the limit; see the top of {Path(__file__).name}", file=sys.stderr)
    return int(args.check and bool(risen))


if __name__ == "__main__":
    raise SystemExit(main())
