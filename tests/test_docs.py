"""Pages whose code a reader will copy are run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
ADD_A_BENCHMARK = ROOT / "docs" / "add-a-benchmark.md"


def files_of(page: str) -> dict[str, str]:
    """Name -> text of each Python block that follows a line with its file name."""
    found = re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", page, flags=re.M | re.S)
    assert len(found) == page.count("```python"), "every Python block has a file name before it"
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
    """A command of the page, with this Python."""
    words = shlex.split(command)
    assert words[0] == "python"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *words[1:]],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_your_own_benchmark_in_two_files(benchmark_folder: Path) -> None:
    names = {path.name for path in benchmark_folder.iterdir()}
    assert names == {"slider_tasks.py", "slider.py", "check.py"}
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
