"""Install both ends of pyproject.toml's dependency ranges into fresh environments and run the fast tests there.

    python scripts/try_ranges.py                                  # lowest, then highest releases
    python scripts/try_ranges.py --ends lowest --keep torch==2.13.0

`lowest` pins every dependency that has a range to its lower bound; `highest` lets pip choose, without constraints.txt.
`--keep` pins some of them at both ends, such as a torch build that is there already. What was installed is printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("libero", "libero-plus", "metaworld", "maniskill", "datasets", "optimize", "plots", "quantization", "serve")
EXTRAS += ("words",)
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
LEFT_OUT = ("tests/architecture", "tests/docs", "tests/test_notebooks.py")
"""Tests of the development tools."""
_BOUND = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9][^,; ]*)")


def lower_bounds(requirements: Sequence[str]) -> list[str]:
    """`name==version` of the lower bound of every requirement that has one."""
    found = (_BOUND.match(requirement) for requirement in requirements)
    return [f"{match[1]}=={match[2]}" for match in found if match]


def constraints(end: str, keep: Sequence[str]) -> list[str]:
    """Return the constraints of one end."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["optional-dependencies"][extra] for extra in EXTRAS]
    low = lower_bounds([*project["dependencies"], *(one for group in groups for one in group)])
    kept = {pin.partition("==")[0] for pin in keep}
    return [*keep, *(pin for pin in low if end == "lowest" and pin.partition("==")[0] not in kept)]


def main() -> int:
    """Try the ends; exit code 1 where an install or a test fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ends", nargs="+", choices=("lowest", "highest"), default=("lowest", "highest"))
    parser.add_argument("--keep", nargs="+", default=[], metavar="NAME==VERSION", help="pins for both ends")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="default: all fast ones")
    args = parser.parse_args()
    failed = []
    for end in args.ends:
        with tempfile.TemporaryDirectory(prefix=f"{end}_") as folder:
            if not tried(end, Path(folder), args.keep, args.tests):
                failed.append(end)
    print(f"failed: {', '.join(failed) or 'none'} of {', '.join(args.ends)}", flush=True)
    return bool(failed)


def tried(end: str, folder: Path, keep: Sequence[str], tests: Sequence[str]) -> bool:
    """Whether the tests pass at one end."""
    pins = folder / "constraints.txt"
    pins.write_text("\n".join([*constraints(end, keep), ""]))
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", pins]
    if subprocess.run([*install, f"{ROOT}[{','.join(EXTRAS)}]", *TOOLS], check=False).returncode:
        return False
    print(f"== {end}", flush=True)
    subprocess.run([python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"], check=True)
    marks = "not (sim or slow or thorough or processes or hub or gpu)"
    ignored = [f"--ignore={path}" for path in LEFT_OUT]
    command = [python, "-m", "pytest", "-q", "-n", "2", "-W", "default", "-m", marks, *ignored, *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
