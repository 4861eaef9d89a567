"""Links out of `docs/` to files of the repository become links to the repository's page, so that both readings work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class RepositoryLinks(SphinxTransform):
    """Turn `[text](../zoo/train.py)` into a link to that file at `source_repository`."""

    default_priority = 5

    def apply(self, **_: object) -> None:
        source = Path(self.app.srcdir)
        options = self.config.html_theme_options
        for node in list(self.document.findall(lambda node: isinstance(node, download_reference | pending_xref))):
            target = node.get("reftarget", "")
            path = (Path(self.document["source"]).parent / target.partition("#")[0]).resolve()
            if node.get("refdomain") == "doc":  # a page, for MyST: without its suffix, absolute where it lies outside
                path = Path(f"{target}.md")
            outside = target.startswith("..") or (path.is_absolute() and target.startswith("/"))
            if not outside or path.is_relative_to(source) or not path.exists():
                continue
            kind = "tree" if path.is_dir() else "blob"
            name = path.relative_to(source.parent).as_posix()
            if anchor := node.get("reftargetid"):
                name += f"#{anchor}"
            uri = f"{options['source_repository']}/{kind}/{options['source_branch']}/{name}"
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=False))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True}
