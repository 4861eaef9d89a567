"""`make setup` with an environment that another start left behind; Python and pip are pretended."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
PYTHON = """#!/bin/bash
folder=${@: -1}
rm -rf "$folder"
mkdir -p "$folder/bin"
printf '#!/bin/sh\\nexit 0\\n' > "$folder/bin/python"
printf '#!/bin/sh\\necho "pip 26.0 from %s/lib/pip (python 3.11)"\\n' "$PWD/$folder" > "$folder/bin/pip"
chmod +x "$folder"/bin/*
echo made >> made
"""

pytestmark = [pytest.mark.processes, pytest.mark.skipif(shutil.which("make") is None, reason="no make")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder, with a space in its name, in which `make setup` has run."""
    folder = tmp_path / "a checkout"
    scripts = folder / "scripts"
    scripts.mkdir(parents=True)
    for name, text in {
        "python": PYTHON,
        "find_python.sh": "#!/bin/sh\necho scripts/python\n",
        "setup_system.sh": "#!/bin/sh\n",
    }.items():
        (scripts / name).write_text(text)
        (scripts / name).chmod(0o755)
    (folder / "pyproject.toml").touch()
    (folder / "constraints.txt").touch()
    shutil.copy(MAKEFILE, folder)
    assert times_made(folder) == 1
    assert times_made(folder) == 1
    return folder


def times_made(folder: Path) -> int:
    """Run `make setup` and return how often the environment was made so far."""
    done = subprocess.run(["make", "setup"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return len((folder / "made").read_text().splitlines())


def test_a_set_up_that_was_stopped_before_pip_was_there_starts_anew(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "pip").unlink()
    for stamp in (checkout / ".venv").glob(".installed-*"):
        stamp.unlink()
    assert times_made(checkout) == 2


def test_a_python_that_has_gone_is_replaced(checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(checkout / "gone")
    (checkout / ".venv" / "bin" / "pip").write_text("#!/nowhere/python\n")
    assert times_made(checkout) == 2
    assert python.is_file()


def test_a_copied_checkout_does_not_run_the_code_of_the_first(checkout: Path) -> None:
    copy = checkout.with_name("copy")
    shutil.copytree(checkout, copy)
    assert times_made(copy) == 2
    assert times_made(checkout) == 1
