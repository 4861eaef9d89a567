"""`scripts/setup_system.sh` on machines that are not this one: what it finds and may do is pretended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "setup_system.sh"
ALWAYS = ("libGL.so.1", "libgthread-2.0.so.0", "libvulkan.so.1")

pytestmark = [pytest.mark.processes, pytest.mark.skipif(shutil.which("dpkg") is None, reason="no Debian or Ubuntu")]


def setup(folder: Path, *libraries: str, root: bool = False) -> subprocess.CompletedProcess[str]:
    """Call the script where these libraries are installed; apt-get writes down what it is asked for."""
    programs = {
        "ldconfig": "\n".join(f"echo '{name} => /usr/lib/{name}'" for name in (*ALWAYS, *libraries)),
        "id": f"echo {0 if root else 1000}",
        "sudo": "exit 1",
        "dpkg-query": "printf 25.0",
        "apt-get": f'echo noise; echo "$*" >> {folder}/asked',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["bash", SCRIPT, sys.executable], env=environ, capture_output=True, text=True)


@pytest.mark.parametrize("there", ["libEGL.so.1", "libOSMesa.so.8"])
def test_one_way_to_render_is_enough_without_root(there: str, tmp_path: Path) -> None:
    done = setup(tmp_path, there)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_any_the_packages_are_named(tmp_path: Path) -> None:
    done = setup(tmp_path)
    assert done.returncode == 1
    assert "sudo apt-get install -y libosmesa6 libegl1" in done.stderr


def test_as_root_the_other_is_brought_as_well_without_noise(tmp_path: Path) -> None:
    done = setup(tmp_path, "libEGL.so.1", root=True)
    assert done.returncode == 0, done.stderr
    assert "install -y -qq --no-install-recommends libosmesa6" in (tmp_path / "asked").read_text()
    assert "Installing libosmesa6 as well" in done.stdout
    assert done.stdout.count("noise") <= 1  # of the update, which is quiet by itself
