"""Pages written from the code at every build: the API by room, every command's flags, the hyperparameter tables.

They go to `docs/reference/generated/`, which git ignores, and are rewritten only where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import api_pages
import command_pages
import hyperparameter_pages

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = Path("reference") / "generated"


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (name within the folder, text) of every generated page."""
    yield from api_pages.pages(root)
    yield from command_pages.pages()
    yield from hyperparameter_pages.pages(root)


def write(app: Sphinx) -> None:
    """Write the pages and remove those of modules that are gone."""
    folder = Path(app.srcdir) / FOLDER
    kept = set()
    for name, text in pages(Path(app.srcdir).parent):
        path = folder / name
        kept.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in kept:
            path.unlink()


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
