"""The documentation site: builds without a warning, has no dead link, needs no network, names everything public."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zlib
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))

from import_graph import module_files  # noqa: E402 - scripts/ is no package

from tests.browser import BROWSER, sideways  # noqa: E402
from zoo.cli.main import COMMANDS  # noqa: E402

pytestmark = pytest.mark.processes


def build(out: Path) -> str:
    """Build the site as `make docs` does; return what was printed."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(out / ".doctrees")]
    done = subprocess.run(
        [*command, "docs", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def anchors(html: str) -> set[str]:
    """Return what a page can be entered at."""
    return set(re.findall(r'\s(?:id|name)="([^"]+)"', html))


def links(html: str) -> list[str]:
    """Return the targets of a page: of links, pictures, scripts and styles."""
    return re.findall(r'<(?:a|link|img|script|source|video)\b[^>]*?\s(?:href|src|poster)="([^"]+)"', html)


def dead_links(pages: dict[str, str], files: set[str]) -> list[str]:
    """Return `page -> target` of every link within the site that leads nowhere."""
    known = {page: anchors(html) for page, html in pages.items()}
    dead = []
    for page, html in pages.items():
        for target in links(html):
            if urlsplit(target).scheme:
                continue
            path, _, anchor = urljoin(page, target).partition("#")
            path = unquote(path.partition("?")[0])
            if path not in files or (anchor and path in known and unquote(anchor) not in known[path]):
                dead.append(f"{page} -> {target}")
    return dead


def fetched(html: str) -> list[str]:
    """Return what a browser would fetch from elsewhere to show a page."""
    tags = re.findall(r"<(?:img|script|source|video|iframe|link)\b[^>]*>", html)
    return [
        tag for tag in tags if re.search(r'(?:src|href|poster)="(?:https?:)?//', tag) and 'rel="canonical"' not in tag
    ]


def inventory(file: Path) -> set[str]:
    """Return the Python names of a site's inventory."""
    head, body = file.read_bytes().split(b"zlib.\n", 1)
    assert head.startswith(b"# Sphinx inventory version 2")
    lines = zlib.decompress(body).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines if " py:" in line}


def public_definitions(source: str) -> list[str]:
    """Return the classes and functions of a module's text that have no leading underscore."""
    found = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return [node.name for node in found if not node.name.startswith("_")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


@pytest.mark.thorough
def test_the_site(site: Path) -> None:
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    pages = {name: (site / name).read_text(encoding="utf-8") for name in files if name.endswith(".html")}
    assert len(pages) > 50
    assert dead_links(pages, files) == []
    assert {page: tags for page, html in pages.items() if (tags := fetched(html))} == {}

    names = inventory(site / "objects.inv")
    exported = {f"{package}.{name}" for package in ("vla_gym", "vla_policies", "zoo") for name in public(package)}
    assert exported - names == set()
    defined = {
        f"{module}.{name}"
        for module, path in module_files(ROOT).items()
        if path.name != "__main__.py"
        for name in public_definitions(path.read_text(encoding="utf-8"))
    }
    told_in_public = {f"{home(name)}.{name.rpartition('.')[2]}" for name in exported}
    assert defined - names - told_in_public == set()

    for command, (module, _) in COMMANDS.items():
        page = pages[f"reference/generated/commands/pages/{command}.html"]
        flags = {flag for action in import_module(module).parser()._actions for flag in action.option_strings}
        assert {flag for flag in flags if f">{flag}<" not in page} == set(), command


WIDTHS = (*range(320, 1921, 40), 1073, 1164, 1313, 1407)
"""Widths of a window, in pixels: from a phone to a desk, and where the theme rearranges a page."""
WIDE = """<!doctype html><body style="margin:0"><pre style="width:500px">x</pre>"""


@pytest.mark.thorough
@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_no_page_scrolls_sideways(site: Path, tmp_path: Path) -> None:
    pages = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))
    assert sideways(site, pages, WIDTHS, tmp_path) == {}


@pytest.mark.thorough
@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_a_page_that_scrolls_sideways_is_found(tmp_path: Path) -> None:
    (tmp_path / "wide.html").write_text(WIDE)
    assert sideways(tmp_path, ["wide.html"], [320, 600], tmp_path / "profile") == {"wide.html": [[320, 180, "PRE."]]}


def public(package: str) -> list[str]:
    return list(import_module(package).__all__)


def home(name: str) -> str | None:
    package, _, member = name.rpartition(".")
    return getattr(getattr(import_module(package), member), "__module__", None)


def test_dead_links_are_found() -> None:
    pages = {
        "index.html": '<a href="a/b.html#here">x</a><a class="y" href="a/b.html#nowhere">x</a><img src="no.png">',
        "a/b.html": '<h1 id="here">x</h1><a href="../index.html">x</a><a href="https://example.org/gone">x</a>',
    }
    assert dead_links(pages, set(pages)) == ["index.html -> a/b.html#nowhere", "index.html -> no.png"]


def test_what_needs_a_network_is_found() -> None:
    assert fetched('<script src="https://cdn.example.org/a.js"></script><a href="https://example.org">x</a>') == [
        '<script src="https://cdn.example.org/a.js">'
    ]
    assert fetched('<link rel="stylesheet" href="//fonts.example.org/a.css"><img src="_images/a.png">') == [
        '<link rel="stylesheet" href="//fonts.example.org/a.css">'
    ]


def test_public_definitions_are_those_at_the_top_without_an_underscore() -> None:
    assert public_definitions("def a(): ...\ndef _b(): ...\nclass C:\n    def d(self): ...\n") == ["a", "C"]
