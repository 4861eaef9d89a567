from __future__ import annotations

import json
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from vla_policies.processing.lerobot_files import feature_dims, lerobot_statistics, normalizations, write_processors
from vla_policies.processing.statistics import Statistics

STATE = Statistics(mean=(1.0, 2.0), std=(3.0, 4.0))
ACTION = Statistics(mean=(0.5,), std=(0.25,))


def write(folder: Path) -> None:
    steps = [{"registry_name": "to_batch_processor", "config": {}}, {"registry_name": "n", "config": {"features": {}}}]
    write_processors(
        folder, (steps, [{"registry_name": "u", "config": {"features": {}}}]), {"state": STATE, "action": ACTION}
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    assert lerobot_statistics(tmp_path) == {"default": {"state": STATE, "action": ACTION}}
    assert (tmp_path / "policy_postprocessor_step_0_u.safetensors").is_file()


def test_the_file_of_statistics_is_the_one_that_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "policy_preprocessor.json"
    (tmp_path / "policy_preprocessor_step_1_n.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(BadValue, match=r"lacks policy_preprocessor_step_1_n.safetensors, the statistics that"):
        lerobot_statistics(tmp_path)
    record = json.loads(path.read_text())
    record["steps"][1]["state_file"] = "other.safetensors"
    path.write_text(json.dumps(record))
    assert lerobot_statistics(tmp_path)["default"]["state"] == STATE
    record["steps"][1]["state_file"] = "../other.safetensors"
    path.write_text(json.dumps(record))
    with pytest.raises(BadValue, match="points outside its folder"):
        lerobot_statistics(tmp_path)


def test_without_files_there_are_no_statistics(tmp_path: Path) -> None:
    assert lerobot_statistics(tmp_path) == {}


def test_normalizations_and_dims() -> None:
    mapping = {"normalization_mapping": {"STATE": "MEAN_STD", "ACTION": "IDENTITY"}}
    assert normalizations(mapping, "quantiles", "here") == {"state": "mean_std", "action": None}
    assert normalizations({}, "quantiles", "here") == {"state": "quantiles", "action": "quantiles"}
    declared = {"input_features": {"observation.state": {"shape": [6]}}}
    # A published file declares 6 numbers where its statistics, and its data, have 2.
    assert feature_dims(declared, "input_features", "observation.state", STATE, 32) == 2
    assert feature_dims(declared, "input_features", "observation.state", None, 32) == 6
    assert feature_dims({}, "input_features", "observation.state", None, 32) == 32
