"""`vla-zoo record_video -i logs/ppo/LIBERO-Spatial_1`: episodes side by side in one mp4."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.cli.shared_flags import add_length_arguments, add_policy_arguments, add_run_arguments
from zoo.enjoy import watch
from zoo.runs.folder import RECORDED_VIDEO


def parser() -> OneLineParser:
    """The flags of `vla-zoo record_video`."""
    p = OneLineParser("vla-zoo record_video", "Record a run's or a policy's episodes, one frame per decision.")
    add_policy_arguments(p)
    add_run_arguments(p)
    add_length_arguments(p, episodes=9)
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="mp4 (default: videos/ in the run folder, else video-POLICY-ENV.mp4 here)",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    watch(parser().parse(argv), RECORDED_VIDEO, elsewhere="video", windowed=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
