"""What version 0.1 wrote is read by every later one: a run, a checkpoint, a policy. The folder is never made anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from vla_policies import VLAPolicy
from zoo import evaluate, train

OLD = Path(__file__).with_name("version_0_1")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD / "run", tmp_path / "ppo" / "Toy-Reach_1"))


def test_a_policy_acts_as_it_did() -> None:
    with np.load(OLD / "expected.npz") as expected:
        obs = {name: expected[name] for name in ("image", "state", "instruction")}
        action, _ = VLAPolicy.from_pretrained(OLD / "run" / "best", device="cpu").predict(obs, deterministic=True)
        np.testing.assert_allclose(action, expected["action"], rtol=0.0, atol=1e-6)


def test_a_run_is_evaluated_as_it_was(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert evaluate.run(["-i", str(run), "--eval-episodes", "6", "-o", str(out)]) == 0
    before, now = json.loads((run / "evaluation.json").read_text()), json.loads(out.read_text())
    assert (now["success"]["successes"], now["success"]["episodes"]) == (0, 6)
    assert now["success"] == before["success"]


def test_a_checkpoint_goes_on_to_what_the_old_version_came_to(run: Path, tmp_path: Path) -> None:
    assert (
        train.run(["-i", str(run / "checkpoints" / "step_230"), "-f", str(tmp_path / "on"), "--num-threads", "1"]) == 0
    )
    weights = load_file(next((tmp_path / "on").glob("ppo/*/best/model.safetensors")))
    expected = load_file(run / "best" / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0.0, atol=1e-5, err_msg=name)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (new,) = (tmp_path / "on").glob("ppo/*/metrics.jsonl")
    last = [json.loads(line) for line in new.read_text().splitlines() if "train/loss" in line][-1]
    old = [line for line in lines if "train/loss" in line][-1]
    assert last["step"] == old["step"] == 353
    assert last["train/loss"] == pytest.approx(old["train/loss"], abs=1e-5)
