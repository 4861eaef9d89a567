from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from zoo.cli.follow_flags import check_films, tracking_of
from zoo.config.tracking import Tracking
from zoo.train import parser


def test_rl_zoo3s_flags_and_the_shorter_ones_name_the_run() -> None:
    flags = "--track wandb trackio wandb --wandb-project-name reach --run-name first --wandb-entity lab -tags toy fast"
    assert tracking_of(parser().parse(flags.split())) == Tracking(
        trackers=("wandb", "trackio"), project="reach", run_name="first", entity="lab", tags=("toy", "fast")
    )
    assert tracking_of(parser().parse(["--project-name", "reach"])).project == "reach"
    assert tracking_of(parser().parse([])) == Tracking()


def test_films_are_refused_where_they_cannot_be_made(tmp_path: Path) -> None:
    check_films(parser().parse(["--video-folder", str(tmp_path / "new")]), collects_elsewhere=True)
    with pytest.raises(BadValue, match="--video-freq films episodes of the process that learns"):
        check_films(parser().parse(["--video-freq", "100"]), collects_elsewhere=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match=r"cannot write films under .* give another --video-folder DIR"):
        check_films(parser().parse(["--video-folder", str(tmp_path / "file")]), collects_elsewhere=False)
