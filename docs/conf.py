"""The documentation site: `make docs` builds it, warnings are errors, and what it shows needs no network."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_ext")]
# A build reads the code and runs none of it on a GPU or against the Hub.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vla_gym import __version__  # noqa: E402 - found beside docs/

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]

project = "vla-zoo"
author = "The vla-zoo authors"
project_copyright = "the vla-zoo authors, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",
    "generated_pages",
    "repository_links",
]
# What other pages include is no page of its own.
included = ("commands/table.md", "hyperparameters/parameters")
exclude_patterns = ["_build", "_ext", *(f"reference/generated/{name}" for name in included)]
nitpicky = False
default_role = "py:obj"
highlight_language = "none"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
# A short name in an annotation may be that of two classes: it then has no link.
suppress_warnings = ["ref.python"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_use_type_comments = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries = False

html_theme = "furo"
html_title = "vla-zoo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_logo = "_static/icon.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": ["view"],
}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
