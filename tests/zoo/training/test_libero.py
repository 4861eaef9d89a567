"""Runs on the real LIBERO simulator: the main job in small, and two updates of each published layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zoo import train as train_command

pytestmark = [pytest.mark.sim, pytest.mark.slow]

SMALL = "num_envs:2 chunk:8 n_steps:2 batch_size:4 image_size:64 num_workers:1"
TWO_UPDATES = ("num_envs:2", "num_workers:1", "rounds_per_update:null", "n_steps:2", "batch_size:4", "n_epochs:1")


def test_ppo_on_libero_goes_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--algo ppo --env LIBERO-Spatial --seed 0 -n 64 --eval-episodes 1 --num-threads 1 -f {tmp_path}"
    assert train_command.run([*flags.split(), "-params", *SMALL.split()]) == 0
    run = tmp_path / "ppo" / "LIBERO-Spatial_1"
    assert update_steps(run) == [32, 64]
    stored = json.loads((run / "evaluation.json").read_text())
    # Nobody solves a task by chance in its first steps, so the episode runs to the horizon.
    assert [(e["task_id"], e["trial_id"], e["length"]) for e in stored["episodes"]] == [(0, 0, 220)]
    protocol = json.loads((run / "protocol.json").read_text())
    assert len(protocol["tasks"]) == 10
    assert {"mujoco", "libero"} & {name.split("-")[0] for name in protocol["versions"]}
    assert len(list((run / "videos").glob("*.mp4"))) == 1
    printed = capsys.readouterr().out
    assert "trained for 64 simulator steps on" in printed
    assert "run folder" in printed


def update_steps(run: Path) -> list[int]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "train/loss" in line]


@pytest.mark.parametrize(
    ("name", "chunk", "params"),
    [
        pytest.param(*("openvla_tiny", 1, ["policy_kwargs:{unnorm_key: libero_spatial}"]), marks=pytest.mark.thorough),
        ("openvla_oft_tiny", 8, []),
        pytest.param("pi0_tiny", 5, [], marks=pytest.mark.thorough),
        pytest.param("pi05_tiny", 5, [], marks=pytest.mark.thorough),
        pytest.param("smolvla_tiny/checkpoint", 10, ["image_size:64"], marks=pytest.mark.thorough),
    ],
)
def test_two_updates_of_a_published_layout(
    tmp_path: Path, golden_root: Path, name: str, chunk: int, params: list[str]
) -> None:
    steps = 2 * 2 * chunk
    flags = f"--env LIBERO-Spatial/0 --policy {golden_root / name} --seed 0 -n {2 * steps} --eval-episodes 0"
    argv = [*flags.split(), "--num-threads", "1", "-f", str(tmp_path), "-params", *TWO_UPDATES, *params]
    assert train_command.run(argv) == 0
    run = tmp_path / "ppo" / "LIBERO-Spatial-0_1"
    assert update_steps(run) == [steps, 2 * steps]
    checkpoint = run / "checkpoints" / f"step_{2 * steps}"
    # OpenVLA's recipes train adapters, pi0's the action expert.
    adapter = name.startswith("openvla")
    assert (checkpoint / "adapter_model.safetensors").is_file() == adapter
    assert (checkpoint / "model.safetensors").is_file() != adapter
    if name != "openvla_oft_tiny":
        return
    assert train_command.run(["-i", str(run), "-n", str(3 * steps), "--num-threads", "1"]) == 0
    assert update_steps(run) == [steps, 2 * steps, 3 * steps]
