"""What a fingerprint is of: the policy's weights, wherever they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mock_checkpoints
from vla_gym.registry import find_benchmark
from vla_policies.model_folder import Request
from vla_policies.resolver import open_folder
from zoo.config.run_config import env_conventions
from zoo.runs.evaluations import policy_line, policy_record, weights_sha256

LIBERO = "physical-intelligence/libero"


def written(folder: Path, **contents: str) -> Path:
    folder.mkdir()
    for name, text in contents.items():
        (folder / f"{name}.safetensors").write_text(text)
    return folder


def test_the_same_weights_are_known_anywhere_and_others_are_not(tmp_path: Path) -> None:
    best = weights_sha256(written(tmp_path / "best", model="abc", value_head="d"))
    assert best is not None
    assert weights_sha256(written(tmp_path / "copy", value_head="d", model="abc")) == best
    step = written(tmp_path / "step_9", model="abc", value_head="d", optimizer="e", rollout="f", reference="g")
    assert weights_sha256(step) == best
    for number, others in enumerate(({"model": "abd"}, {"model": "abcd", "value_head": ""}, {"model": "abc"})):
        assert weights_sha256(written(tmp_path / str(number), **others)) != best


def test_heads_in_files_of_their_own_are_weights_too(tmp_path: Path) -> None:
    folder = written(tmp_path / "oft", model="abc")
    bare = weights_sha256(folder)
    (folder / "action_head--1_checkpoint.pt").write_text("d")
    assert weights_sha256(folder) != bare


def test_a_policy_record_says_how_it_is_read_and_which_weights_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--RLinf-Pi0-LIBERO" / "snapshots" / "c0ffee"
    ref = open_folder(mock_checkpoints.rlinf_pi0(folder, LIBERO), Request(options={"horizon": 50}))
    benchmark = find_benchmark("LIBERO-Spatial")
    env = env_conventions(benchmark, {"chunk": 5, "wrist_camera": True})
    ref = ref.fitted(env, benchmark.suite)
    record = policy_record(ref, env, benchmark)
    wanted = {"family": "pi0", "layout": "rlinf", "statistics": LIBERO, "head": "flow", "delta_dims": 6, "chunk": 5}
    wanted |= {"cameras": ["image", "wrist_image"], "action_dim": 7, "gripper": "plus_one_closes", "commit": "c0ffee"}
    assert {name: record[name] for name in wanted} == wanted
    line = policy_line(record)
    assert line.startswith("read as: family pi0; layout rlinf; statistics physical-intelligence/libero; ")
    assert f"commit c0ffee; model sha256 {record['model_sha256'][:12]}" in line
    ref.warn("left out")
    assert policy_record(ref, env)["notes"] == ["left out"]


def test_an_adapter_beside_whole_weights_is_not_ignored_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "openvla-7b", ["bridge_orig"], size="tiny")
    mock_checkpoints.openvla_adapter(folder, base="openvla/openvla-7b", size="tiny")
    ref = open_folder(folder)
    assert "beside them an adapter, which is left out" in caplog.text
    assert len(ref.notes) == 1
