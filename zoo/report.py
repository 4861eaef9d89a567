"""`vla-zoo report -i logs/ppo/LIBERO-Spatial_1`: a run on one page that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.runs.folder import REPORT_FILE
from zoo.runs.lookup import find_run


def parser() -> OneLineParser:
    """The flags of `vla-zoo report`."""
    p = OneLineParser("vla-zoo report", "A run's results, curves, video and settings as one HTML file.")
    p.add_argument("-i", "--run", required=True, metavar="RUN", help="run folder")
    p.add_argument("-o", "--output", metavar="FILE", help=f"HTML file (default: {REPORT_FILE} in the run folder)")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    from zoo.runs.report_page import write_run_page

    output = Path(args.output) if args.output else None
    print(f"written to {write_run_page(find_run(args.run), output)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
