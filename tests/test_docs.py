"""Pages whose code a reader will copy are run as they stand; every command that a page shows is read by its parser."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import vla_gym
from tests.zoo.forks import code_of, forked
from vla_gym.errors import VLAZooError
from zoo.cli.arguments import EXAMPLES, key_values
from zoo.cli.main import COMMANDS, main

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
ADD_A_BENCHMARK = ROOT / "docs" / "add-a-benchmark.md"
CUSTOMISING = ROOT / "docs" / "customising.md"
OWN_ENVIRONMENT = ROOT / "docs" / "tutorials" / "own-environment.md"
WRITTEN_BY_BUILDS = (ROOT / "docs" / "_build", ROOT / "docs" / "reference" / "generated")
PAGES = [ROOT / "README.md"] + [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if not any(page.is_relative_to(folder) for folder in WRITTEN_BY_BUILDS)
]
OWN_IDS = ("Slider", "Yard")
"""Environments that a page registers itself."""


def files_of(page: str) -> dict[str, str]:
    """Name -> text of each Python block that follows a line with its file name."""
    found = re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", page, flags=re.M | re.S)
    return dict(found)


def commands_of(page: str) -> list[str]:
    """Lines of the shell blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", page, flags=re.M | re.S)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def benchmark_folder(tmp_path: Path) -> Path:
    for name, text in files_of(ADD_A_BENCHMARK.read_text(encoding="utf-8")).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(command: str, folder: Path) -> str:
    """A command of the page in a fork, as a Python of its own would find it in the folder; what it said."""
    program, *words = shlex.split(command)
    assert program in ("python", "vla-zoo")

    def act() -> int:
        os.chdir(folder)
        sys.path[:0] = [str(folder)]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(folder)])  # of workers
        warnings.simplefilter("error", UserWarning)
        if program == "vla-zoo":
            return main(words)
        runpy.run_path(words[0], run_name="__main__")
        return 0

    said = folder.with_name("said")
    code = code_of(forked(act, said))
    assert code == 0, f"{command}\n{said.read_text()}"
    return said.read_text()


def test_your_own_benchmark_in_two_files(benchmark_folder: Path) -> None:
    names = {path.name for path in benchmark_folder.iterdir()}
    assert names == {"slider_tasks.py", "slider.py", "check.py"}
    assert len(names) == ADD_A_BENCHMARK.read_text(encoding="utf-8").count("```python"), "each block has a file name"
    check, train, evaluate = commands_of(ADD_A_BENCHMARK.read_text(encoding="utf-8"))
    run(check, benchmark_folder)
    assert "success" in run(train, benchmark_folder)
    assert (benchmark_folder / "logs" / "ppo" / "Slider_1" / "protocol.json").is_file()
    assert "6 of 20 start states on 2 of 2 tasks" in run(evaluate, benchmark_folder)


def test_the_page_s_check_can_fail(benchmark_folder: Path) -> None:
    simulator = benchmark_folder / "slider.py"
    right = "self.x = float(rng.uniform(0.4, 0.6))"
    assert right in simulator.read_text()
    # A start state that depends on what came before.
    simulator.write_text(simulator.read_text().replace(right, "self.x = 0.4 + np.random.rand() / 5"))
    with pytest.raises(AssertionError, match="promise broken"):
        run("python check.py", benchmark_folder)


@pytest.mark.thorough
def test_your_own_gymnasium_environment(tmp_path: Path) -> None:
    page = OWN_ENVIRONMENT.read_text(encoding="utf-8")
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    check, by_call, train, evaluate = commands_of(page)
    run(check, tmp_path)
    assert "6 of" in run(by_call, tmp_path)
    assert "success" in run(train, tmp_path)
    assert "6 of 50 start states on 1 of 1 tasks" in run(evaluate, tmp_path)


def test_a_reward_a_callback_and_a_network_of_one_s_own(tmp_path: Path) -> None:
    page = CUSTOMISING.read_text(encoding="utf-8")
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    train, learn, evaluate = commands_of(page)
    run(train, tmp_path)
    run_folder = tmp_path / "logs" / "ppo" / "Toy-Reach_1"
    records = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert min(record.get("rollout/rewards", 0) for record in records) < 0, "steps cost something"
    assert "Hurry" in (run_folder / "config.yml").read_text()
    run(learn, tmp_path)
    assert "4 of " in run(evaluate, tmp_path)


def test_the_library_examples_of_the_first_pages(tmp_path: Path) -> None:
    for place, page in enumerate((ROOT / "README.md", ROOT / "docs" / "tutorials" / "first-vla.md")):
        (block,) = python_blocks(page.read_text(encoding="utf-8"))
        (tmp_path / f"example_{place}.py").write_text(block, encoding="utf-8")
        run(f"python example_{place}.py", tmp_path)
        assert (tmp_path / "my-policy" / "config.json").is_file()


def python_blocks(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)


def imported(block: str) -> Iterator[tuple[str, str | None]]:
    """Yield (module, name or None) of what a block imports from the three packages."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_are_python_and_import_what_exists(page: Path) -> None:
    for block in python_blocks(page.read_text(encoding="utf-8")):
        for module, name in imported(block):
            if module.split(".")[0] in ("vla_gym", "vla_policies", "zoo"):
                assert name is None or hasattr(import_module(module), name), f"{module}.{name}"


@pytest.mark.thorough
def test_python_examples_have_right_types(tmp_path: Path) -> None:
    for page in PAGES:
        for number, block in enumerate(python_blocks(page.read_text(encoding="utf-8"))):
            (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(block, encoding="utf-8")
    # A block may go on from the one before it, or name a file of the reader's.
    besides = ("--allow-untyped-defs", "--disable-error-code=name-defined", "--disable-error-code=import-not-found")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *besides, *sorted(tmp_path.iterdir())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


def shown_commands(page: str) -> Iterator[list[str]]:
    """Yield the words behind `vla-zoo` of every command of ours in a page's shell blocks."""
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```$", page, flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:vla-zoo|-m zoo\.)\s*(?=[a-z_]+( |$))(.*)", line)
            if found and "$" not in line and "..." not in line:
                words = shlex.split(found.group(2), comments=True)
                yield words[: words.index("&&")] if "&&" in words else words


def check_command(words: list[str]) -> None:
    """Raise for a command, flag, value or environment that does not exist."""
    command, *flags = words
    args = import_module(COMMANDS[command][0]).parser().parse(flags)
    key_values(getattr(args, "params", None) or [])
    env_id = getattr(args, "env", None)
    for name in [env_id] if isinstance(env_id, str) else env_id or []:
        if name not in OWN_IDS:
            vla_gym.find_benchmark(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_shown_are_commands(page: Path) -> None:
    for words in shown_commands(page.read_text(encoding="utf-8")):
        try:
            check_command(words)
        except (VLAZooError, KeyError) as error:
            pytest.fail(f"{' '.join(words)}: {error}")


def test_every_command_s_help_ends_with_examples_that_it_takes() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    for name, lines in EXAMPLES.items():
        assert import_module(COMMANDS[name][0]).parser().format_help().endswith(f"{lines[-1]}\n"), name
        for words in shown_commands("```bash\n" + "\n".join(lines) + "\n```\n"):
            assert words[0] == name
            check_command(words)


def test_the_check_of_commands_can_fail() -> None:
    page = "```bash\nvla-zoo train --env Toy-Reach --sed 3  # x\npython -m zoo.evaluate --env Toy-Reech\nls\n```\n"
    sed, reech = shown_commands(page)
    assert sed == ["train", "--env", "Toy-Reach", "--sed", "3"]
    with pytest.raises(VLAZooError, match="did you mean '--seed'"):
        check_command(sed)
    with pytest.raises(VLAZooError, match="Toy-Reach"):
        check_command(reech)


def test_links_of_the_readme_are_absolute_and_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 15
    here = re.compile(r"https://(?:github\.com|raw\.githubusercontent\.com)/vla-zoo/vla-zoo/(?:blob/|tree/)?main/(.+)")
    paths = [found.group(1) for target in targets if (found := here.match(target))]
    assert [path for path in paths if not (ROOT / path.partition("#")[0]).exists()] == []
    assert [target for target in targets if not target.startswith("https://")] == []
