"""Modules, commands and files that README.md and docs/ name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from import_graph import PACKAGES
from rooms import MODULES, ROOT, SOURCES

WRITTEN_BY_BUILDS = (ROOT / "docs" / "_build", ROOT / "docs" / "reference" / "generated")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not any(page.is_relative_to(folder) for folder in WRITTEN_BY_BUILDS)
    ),
]
FOLDERS = (*PACKAGES, "agents", "benchmarks", "docs", "experiments", "hyperparams", "scripts", "tests")


def dotted_names(page: str) -> set[str]:
    """Return the names of ours that a page gives: `zoo.train`, `vla_gym.vector.sb3.SB3VecEnv`."""
    return set(re.findall(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+(?![\w-]*/)", page))


def known(name: str) -> bool:
    """Whether a dotted name is a module of ours, or is written in the module that its beginning names."""
    if name in MODULES:
        return True
    module, _, member = name.rpartition(".")
    while module and module not in MODULES:
        module, _, member = module.rpartition(".")
    return bool(module) and re.search(rf"\b{member}\b", SOURCES[module]) is not None


def commands(page: str) -> set[str]:
    """Return the modules that a page runs with `python -m` or under `accelerate launch`."""
    return set(re.findall(r"(?<!\w)-m ((?:benchmarks|experiments|" + "|".join(PACKAGES) + r")[\w.]*\w)", page))


def runnable(module: str) -> bool:
    """Whether `python -m module` does something."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return file.is_file() and (file.name == "__main__.py" or "__main__" in file.read_text(encoding="utf-8"))


def files(page: str) -> set[str]:
    """Return the files and folders of the repository that a page names or links to."""
    words = re.findall(r"`([^`\s]+)`", page) + re.findall(r"\]\(([^)#\s]+)\)", page)
    return {word for word in words if word.split("/")[0] in FOLDERS and "/" in word and not re.search(r"[*=:{]", word)}


def exists(path: str) -> bool:
    """Whether a file or folder has the name, `<name>` standing for any."""
    return any(ROOT.glob(re.sub(r"<\w+>", "*", path.rstrip("/"))))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert {name for name in dotted_names(text) if not known(name)} == set()
    assert {module for module in commands(text) if not runnable(module)} == set()
    assert {path for path in files(text) if not exists(path)} == set()
    links = re.findall(r"\]\(([^)#:\s]+)\)", text)
    # What the site's build generates is not there before it; the build finds broken links to it by itself.
    kept = {link for link in links if "reference/generated/" not in link}
    assert {link for link in kept if not (page.parent / link).exists()} == set()


def test_every_experiment_stands_in_their_index() -> None:
    folder = ROOT / "experiments"
    named = re.findall(r"\]\((2\d{3}-[^)]*)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(path.name for path in folder.glob("2*.md"))


def test_the_guards_can_fail() -> None:
    text = "`zoo.nowhere` and vla_gym.make_vec; python -m zoo.nothing; [x](docs/nothing.md), `zoo/nothing.py`"
    assert dotted_names(text) == {"zoo.nowhere", "vla_gym.make_vec", "zoo.nothing"}
    assert not known("zoo.nowhere")
    assert known("vla_gym.make_vec")
    assert known("vla_policies.policy.VLAPolicy.from_pretrained")
    assert commands(text) == {"zoo.nothing"}
    assert not runnable("zoo.nothing")
    assert not runnable("zoo.files")
    assert runnable("zoo.train")
    assert files(text) == {"docs/nothing.md", "zoo/nothing.py"}
    assert not exists("docs/nothing.md")
