"""What the packages import from others is declared in `pyproject.toml`, by the dependencies or by an extra."""

from __future__ import annotations

import functools
import sys
import tomllib
from importlib.metadata import packages_distributions, requires

import pytest
from import_graph import PACKAGES, When, imports
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rooms import ROOT, SOURCES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
EXTRAS = {
    canonicalize_name(Requirement(text).name)
    for extra, texts in PROJECT["optional-dependencies"].items()
    for text in texts
    if extra != "dev"
}
BROUGHT_ALONG: dict[str, str] = {
    "OpenGL": "mujoco",
    "markupsafe": "jinja2",
    "numba": "robosuite",
    "sapien": "mani-skill",
    "scipy": "robosuite",
    "sqlalchemy": "optuna",
    "tokenizers": "transformers",
}
"""Module of no declared distribution -> the declared one that requires its distribution, at a version that fits."""
HOSTS = {"lerobot", "vla_eval"}
"""Programs that import `vla_gym.plugins`: they are there when it is read."""


def third_party(*when: When) -> set[str]:
    """Return the packages of others that ours import, or those of them that are imported `when`."""
    found = (one for source in SOURCES.values() for one in imports(source))
    names = {one.name.split(".")[0] for one in found if not when or one.when in when}
    return names - set(PACKAGES) - sys.stdlib_module_names


distributions = functools.cache(packages_distributions)
"""Reads the files of every installed distribution."""


def providers(module: str) -> set[str]:
    """Return the distributions that bring a module, in pip's spelling."""
    return {str(canonicalize_name(name)) for name in distributions().get(module, [])}


def undeclared(*when: When) -> set[str]:
    """Return the third-party packages that nothing in `pyproject.toml` brings."""
    return {name for name in third_party(*when) if not providers(name) & (CORE | EXTRAS)}


everything_installed = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="mani_skill installs below Python 3.13 alone"
)


@everything_installed
def test_what_is_imported_is_declared() -> None:
    assert undeclared() == {*BROUGHT_ALONG, *HOSTS}


@everything_installed
@pytest.mark.parametrize("module", BROUGHT_ALONG)
def test_the_table_says_who_brings_what(module: str) -> None:
    required = {canonicalize_name(Requirement(text).name) for text in requires(BROUGHT_ALONG[module]) or ()}
    assert providers(module) & required


def test_an_undeclared_import_is_seen() -> None:
    assert {"numpy", "torch", "optuna"} <= third_party()
    assert "optuna" not in third_party("load")
    assert providers("yaml") == {"pyyaml"}
    assert not providers("no_such_module")
