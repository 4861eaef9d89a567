"""The two distributions: versions, types, extras; and the files that install them elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import vla_gym
import vla_policies
import zoo

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(extra: str) -> dict[str, Requirement]:
    found = map(Requirement, EXTRAS[extra])
    return {requirement.name: requirement for requirement in found}


@pytest.mark.parametrize("package", [vla_gym, vla_policies, zoo])
def test_every_package_has_the_version_and_is_typed(package: object) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", package.__version__)  # type: ignore[attr-defined]
    assert package.__version__ == vla_gym.__version__  # type: ignore[attr-defined]
    assert (Path(package.__file__).parent / "py.typed").is_file()  # type: ignore[attr-defined]


def test_every_file_that_says_a_version_says_this_one() -> None:
    said = {
        name: re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), flags=re.M)
        for name, pattern in {
            "agents/__init__.py": r'^__version__ = "(.+)"$',
            "CITATION.cff": r"^version: (.+)$",
            "CHANGELOG.md": r"^## (\d[\w.]*)",
            "README.md": r"^  version = \{(.+)\},$",
            "docs/index.md": r"^  version = \{(.+)\},$",
        }.items()
    }
    assert {name: found[0] for name, found in said.items()} == dict.fromkeys(said, zoo.__version__)


def test_a_tag_publishes_what_was_checked() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert release[True] == {"push": {"tags": ["v[0-9]*"]}}  # YAML 1.1 reads `on` so
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    commands = [step["run"] for step in build["steps"] if "run" in step]
    tag = {"GITHUB_REF_NAME": f"v{zoo.__version__}", "PATH": os.environ["PATH"]}
    for name, code in ((tag["GITHUB_REF_NAME"], 0), ("v9.9.9", 1)):
        done = subprocess.run(["bash", "-c", commands[0]], cwd=ROOT, env={**tag, "GITHUB_REF_NAME": name})
        assert done.returncode == code
    assert "scripts/check_wheel.sh" in commands[1]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    (upload,) = [step["with"] for step in build["steps"] if "upload-artifact" in step.get("uses", "")]
    (download,) = [step["with"] for step in publish["steps"] if "download-artifact" in step["uses"]]
    assert upload["name"] == download["name"]


def test_the_agents_worth_keeping_are_few_and_small() -> None:
    folders = [path.parent for path in (ROOT / "agents").glob("*/*/config.json")]
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*"))
    assert len(folders) <= 16
    assert size <= 45e6


def test_the_agents_of_this_checkout_are_those_the_extra_asks_for() -> None:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "agents" / "__init__.py").read_text())
    assert version is not None
    assert requirements("agents")["vla-zoo-agents"].specifier.contains(version[1])
    assert (ROOT / "agents" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.slow
def test_what_is_published_works_outside_the_repository() -> None:
    script = ROOT / "scripts" / "check_wheel.sh"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [script, "--borrow", sys.executable], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    assert f"vla_zoo-{zoo.__version__}-py3-none-any.whl" in done.stdout


@pytest.mark.processes
def test_the_source_distribution_holds_what_works_without_the_repository(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=ROOT, check=True)
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as opened:
        top = {name.split("/")[1] for name in opened.getnames()}
    assert {"vla_gym", "vla_policies", "zoo", "hyperparams", "pyproject.toml", "LICENSE", "CITATION.cff"} <= top
    # The trained agents, the notebooks and the set-ups of CI are not in it, and these ask for them.
    assert not top & {"tests", "benchmarks", "scripts", "Makefile"}


@pytest.mark.parametrize(("has", "chosen"), [([13], 13), ([13, 12], 12), ([11, 12], 11), ([10, 14], None)])
def test_the_set_up_prefers_a_python_that_all_extras_have_wheels_for(
    has: list[int], chosen: int | None, tmp_path: Path
) -> None:
    for place, minor in enumerate(has):
        # The first is also `python3`. It answers the script's question as that version would.
        for name in (f"python3.{minor}", *(["python3"] if place == 0 else [])):
            fake = tmp_path / name
            code = f"import sys; sys.version_info = (3, {minor}, 0); exec(sys.argv[1])"
            fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$2"\n')
            fake.chmod(0o755)
    (tmp_path / "sh").symlink_to("/bin/sh")
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "find_python.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    if chosen is None:
        assert done.returncode == 1
        assert "No Python 3.11, 3.12 or 3.13" in done.stderr
    else:
        name = "python3" if has[0] == chosen else f"python3.{chosen}"
        assert done.stdout.strip() == str(tmp_path / name)


def instructions_of_the_dockerfile() -> list[tuple[str, str]]:
    """Return (instruction, its arguments), continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [
        (name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in text.splitlines()) if name
    ]


def extras_in(text: str) -> set[str]:
    """Return the extras of the last brackets, or of an `EXTRAS=` in a text."""
    (names,) = re.findall(r"(?:\.\[|EXTRAS=)([a-z,-]+)", text)
    return set(names.split(","))


def test_the_image_is_made_from_files_and_extras_that_are_there() -> None:
    found = instructions_of_the_dockerfile()
    assert {name for name, _ in found} <= {
        *("ARG", "FROM", "SHELL", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD")
    }
    assert found[0] == ("ARG", "BASE=debian:bookworm-slim")
    assert found[1] == ("FROM", "${BASE}")
    (extras,) = (rest for name, rest in found if name == "ARG" and rest.startswith("EXTRAS"))
    assert extras_in(extras) == set(EXTRAS) - {"agents", "dev", "docs"}
    (installs,) = (rest for name, rest in found if name == "RUN" and "pip install" in rest)
    assert (ROOT / installs.split("-c ")[1].split()[0]).is_file()
    assert (ROOT / installs.split()[-1] / "pyproject.toml").is_file()
    for name, rest in found:
        if name == "COPY":
            assert (ROOT / rest.split()[0]).exists()
    # Nothing runs as root.
    assert found.index(("USER", "10001")) < found.index(("ENTRYPOINT", '["vla-zoo"]'))
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {"agents", "hyperparams", "README.md", "LICENSE"} & set(ignored)


def test_the_conda_environment_names_what_is_there() -> None:
    described = yaml.safe_load((ROOT / "environment.yml").read_text())
    *packages, pip = described["dependencies"]
    assert "python=3.11" in packages
    constraints, editable, agents = pip["pip"]
    assert (ROOT / constraints.removeprefix("-c ")).is_file()
    assert extras_in(editable) == set(EXTRAS) - {"agents", "dev", "docs"}
    assert (ROOT / agents / "pyproject.toml").is_file()


def test_what_is_pinned_installs_with_the_oldest_python_that_is_promised() -> None:
    oldest = re.fullmatch(r">=(\d+\.\d+)", PROJECT["requires-python"])
    assert oldest
    refused = {}
    for pin in re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE):
        try:
            wanted = distribution(pin).metadata.json.get("requires_python", "")
        except PackageNotFoundError:  # of an extra, or a platform, that is not here
            continue
        if not SpecifierSet(wanted).contains(f"{oldest[1]}.0"):
            refused[pin] = wanted
    assert not refused, f"pin releases that take Python {oldest[1]}.0"
