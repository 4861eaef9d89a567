from __future__ import annotations

import json
from pathlib import Path

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.processing.lerobot_files import (
    feature_dims,
    lerobot_statistics,
    normalizations,
    relative_dims,
    relative_mask,
    write_processors,
)
from vla_policies.processing.statistics import Statistics

STATE = Statistics(mean=(1.0, 2.0), std=(3.0, 4.0))
ACTION = Statistics(mean=(0.5,), std=(0.25,))
NORMALIZER = "normalizer_processor"


def write(folder: Path) -> None:
    steps = [
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": NORMALIZER, "config": {"features": {}}},
    ]
    write_processors(
        folder,
        (steps, [{"registry_name": "unnormalizer_processor", "config": {"features": {}}}]),
        {"state": STATE, "action": ACTION},
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    assert lerobot_statistics(tmp_path) == {"default": {"state": STATE, "action": ACTION}}
    assert (tmp_path / "policy_postprocessor_step_0_unnormalizer_processor.safetensors").is_file()


def test_the_file_of_statistics_is_the_one_that_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "policy_preprocessor.json"
    (tmp_path / f"policy_preprocessor_step_1_{NORMALIZER}.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(
        BadValue, match=r"lacks policy_preprocessor_step_1_normalizer_processor\.safetensors, the statistics that"
    ):
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


NAMES = ["x", "y", "gripper.pos"]


def write_relative(folder: Path, *, before: object, after: object, excluded: object = ("gripper",)) -> None:
    """Processors whose steps of relative actions are enabled or not."""
    settings = {"enabled": before, "exclude_joints": excluded, "action_names": NAMES}
    for name, step in (
        ("policy_preprocessor", {"registry_name": "relative_actions_processor", "config": settings}),
        ("policy_postprocessor", {"registry_name": "absolute_actions_processor", "config": {"enabled": after}}),
    ):
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": [step]}))


def test_which_numbers_are_relative() -> None:
    assert relative_mask(3, ["Gripper"], NAMES) == [True, True, False]
    assert relative_mask(4, ["x"], NAMES) == [False, True, True, True]
    assert relative_mask(2, [], NAMES) == [True, True]
    assert relative_mask(2, ["gripper"], None) == [True, True]


def test_leading_relative_numbers_are_counted(tmp_path: Path) -> None:
    config = {"use_relative_actions": True, "relative_exclude_joints": ["gripper"], "action_feature_names": NAMES}
    assert relative_dims(tmp_path, config, 3) == 2
    write_relative(tmp_path, before=True, after=True)
    assert relative_dims(tmp_path, {"use_relative_actions": True}, 3) == 2
    write_relative(tmp_path, before=False, after=False)
    assert relative_dims(tmp_path, {}, 3) == 0


def test_relative_numbers_after_absolute_ones_are_refused(tmp_path: Path) -> None:
    write_relative(tmp_path, before=True, after=True, excluded=["y"])
    with pytest.raises(BadValue, match=r"relative actions must be the first ones.* got \[true, false, true\]"):
        relative_dims(tmp_path, {"use_relative_actions": True}, 3)


@pytest.mark.parametrize(("said", "before", "after"), [(True, False, False), (False, True, True), (True, True, False)])
def test_settings_and_processors_must_agree(tmp_path: Path, said: bool, before: bool, after: bool) -> None:
    write_relative(tmp_path, before=before, after=after)
    with pytest.raises(BadValue, match=f"does not agree .* use_relative_actions of config.json is {str(said).lower()}"):
        relative_dims(tmp_path, {"use_relative_actions": said}, 3)


def test_a_step_that_is_not_known_is_refused_unless_it_is_off(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "policy_preprocessor.json"
    record = json.loads(path.read_text())
    for step in ({"registry_name": "crop_processor"}, {"class": "mine.Crop"}):
        path.write_text(json.dumps({**record, "steps": [*record["steps"], step]}))
        with pytest.raises(UnknownName, match=r"no processor step in .*policy_preprocessor.json.* '(crop_|mine)"):
            lerobot_statistics(tmp_path)
    path.write_text(json.dumps({**record, "steps": [*record["steps"], {**step, "config": {"enabled": False}}]}))
    assert lerobot_statistics(tmp_path)["default"]["state"] == STATE
