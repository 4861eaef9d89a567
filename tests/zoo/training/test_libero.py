"""The main job in small: a run on the real LIBERO simulator, through worker processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zoo import train as train_command

pytestmark = [pytest.mark.sim, pytest.mark.slow]

SMALL = "num_envs:2 chunk:8 n_steps:2 batch_size:4 image_size:64 num_workers:2"


def test_ppo_on_libero_goes_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--algo ppo --env LIBERO-Spatial --seed 0 -n 64 --eval-episodes 2 --num-threads 1 -f {tmp_path}"
    assert train_command.run([*flags.split(), "-params", *SMALL.split()]) == 0
    run = tmp_path / "ppo" / "LIBERO-Spatial_1"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == [32, 64]
    stored = json.loads((run / "evaluation.json").read_text())
    # Nobody solves a task by chance in its first steps, so both episodes run to the horizon.
    assert [(e["task_id"], e["trial_id"], e["length"]) for e in stored["episodes"]] == [
        (0, 0, 220),
        (5, 0, 220),
    ]
    protocol = json.loads((run / "protocol.json").read_text())
    assert len(protocol["tasks"]) == 10
    assert {"mujoco", "libero"} & {name.split("-")[0] for name in protocol["versions"]}
    assert len(list((run / "videos").glob("*.mp4"))) == 1
    printed = capsys.readouterr().out
    assert "trained for 64 simulator steps on" in printed
    assert "run folder" in printed
