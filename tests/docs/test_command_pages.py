"""Pages of flags."""

from __future__ import annotations

import argparse

from command_pages import command_page


def test_flags_with_their_values_and_their_help() -> None:
    parser = argparse.ArgumentParser(description="Do it.", add_help=False)
    parser.add_argument("-n", "--steps", default=3, metavar="N", help="a|b (default: %(default)s)")
    parser.add_argument("--params", nargs="+", metavar="K:V")
    parser.add_argument("--kind", choices=("x", "y"))
    parser.add_argument("--dry-run", action="store_true")
    page = command_page("do", parser)
    assert page.startswith("# do\n\nDo it.\n\n```bash\nvla-zoo do ...\n```\n")
    assert "| `-n N`<br>`--steps N` | a\\|b (default: 3) |" in page
    assert "| `--params K:V ...` |  |" in page
    assert "| `--kind {x,y}` |  |" in page
    assert "| `--dry-run` |  |" in page
