from __future__ import annotations

import json
from pathlib import Path

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.processing.statistics import Statistics
from vla_policies.vlm_flow.lerobot import (
    check_supported,
    known_cameras,
    lerobot_statistics,
    write_processors,
)

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
    with pytest.raises(BadValue, match=r"lacks \.\./other"):
        lerobot_statistics(tmp_path)


def test_without_files_there_are_no_statistics(tmp_path: Path) -> None:
    assert lerobot_statistics(tmp_path) == {}


@pytest.mark.parametrize("name", ["adapt_to_pi_aloha", "use_delta_joint_actions_aloha", "use_relative_actions"])
def test_other_actions_are_refused(name: str, tmp_path: Path) -> None:
    check_supported(tmp_path, {name: False})
    with pytest.raises(BadValue, match=name):
        check_supported(tmp_path, {name: True})


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


IMAGES = "observation.images."


@pytest.mark.parametrize(
    ("names", "renames", "known"),
    [
        (["camera1", "camera2", "camera3"], {}, ("image", "wrist_image")),
        (["camera1"], {}, ("image",)),
        # lerobot's LIBERO: image is the main camera, image2 the wrist's.
        (["camera1", "camera2"], {"image": "camera1", "image2": "camera2"}, ("image", "wrist_image")),
        (["camera1", "camera2"], {"image2": "camera1", "image": "camera2"}, ("wrist_image", "image")),
        (["image2", "image"], {}, ("wrist_image", "image")),
        (["image", "image2"], {"image": "image2", "image2": "image"}, ("wrist_image", "image")),
        (["camera1", "camera2"], {"camera1": "camera2", "camera2": "camera1"}, ("wrist_image", "image")),
        (["camera1", "camera2"], {"wrist": "camera1", "front": "camera2"}, ("wrist_image", "image")),
        (["camera1", "camera2"], {"front": "camera2", "side": "camera1"}, ("wrist_image", "image")),
    ],
)
def test_renamed_cameras_are_the_environments_by_their_former_names(
    names: list[str], renames: dict[str, str], known: tuple[str, ...]
) -> None:
    full = {IMAGES + old: IMAGES + new for old, new in renames.items()}
    assert known_cameras([IMAGES + name for name in names], full) == known
