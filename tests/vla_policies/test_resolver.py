"""Whose folder it is, where OpenVLA's and OpenVLA-OFT's have the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from vla_policies.model_folder import Request
from vla_policies.resolver import names_of, open_folder

SNAPSHOT = "snapshots/0123456789abcdef0123456789abcdef01234567"


def tokens_only(golden_root: Path, target: Path) -> Path:
    """A fine-tune on action tokens, such as SimpleVLA-RL's: OpenVLA's files and no others (no weights here)."""
    target.mkdir(parents=True)
    for file in (golden_root / "openvla_oft_tiny").glob("*.json"):
        shutil.copyfile(file, target / file.name)
    return target


def family_of(folder: Path, family: str | None = None) -> str:
    return open_folder(folder, Request(unnorm_key="libero_spatial", family=family)).header.family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Openvla-oft-SFT-libero10-traj1", "openvla-oft"),
        ("RLinf-OpenVLAOFT-LIBERO-130", "openvla-oft"),
        ("openvla-7b-oft-finetuned-libero-spatial", "openvla-oft"),
        (f"models--RLinf--RLinf-OpenVLAOFT-LIBERO-90-Base-Lora/{SNAPSHOT}", "openvla-oft"),
        ("openvla-7b", "openvla"),
        (f"models--openvla--openvla-7b-finetuned-libero-10/{SNAPSHOT}", "openvla"),
        (f"models--gen-robot--openvla-7b-rlvla-warmup/{SNAPSHOT}", "openvla"),
        (f"models--RLinf--RLinf-OpenVLA-PPO-ManiSkill3-25ood/{SNAPSHOT}", "openvla"),
    ],
)
def test_the_published_name_tells(
    golden_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, family: str
) -> None:
    assert family_of(tokens_only(golden_root, tmp_path / name)) == family
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "stop_token", "camera_resize", "center_crop"),
    [
        ("Openvla-oft-SFT-libero10-traj1", True, "jpeg_lanczos3", True),
        ("RLinf-OpenVLAOFT-LIBERO-130", False, "bicubic", False),
        ("RLinf-OpenVLAOFT-RoboTwin-SFT-place_empty_cup", True, "jpeg_lanczos3", True),
    ],
)
def test_the_published_name_tells_whose_program_reads_it(
    golden_root: Path, tmp_path: Path, name: str, stop_token: bool, camera_resize: str, center_crop: bool
) -> None:
    folder = tokens_only(golden_root, tmp_path / name)
    settings = open_folder(folder, Request(unnorm_key="libero_spatial")).header.model["settings"]
    got = [settings[key] for key in ("stop_token", "camera_resize", "center_crop", "chunk")]
    assert got == [stop_token, camera_resize, center_crop, 8]
    said = Request(unnorm_key="libero_spatial", options={"stop_token": not stop_token})
    assert open_folder(folder, said).header.model["settings"]["stop_token"] is not stop_token


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("from prismatic.vla.constants import ACTION_DIM, NUM_ACTIONS_CHUNK", "openvla-oft"),
        ("class OpenVLAForActionPrediction(PrismaticForConditionalGeneration):", "openvla"),
    ],
)
def test_the_makers_code_tells(
    golden_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, family: str
) -> None:
    folder = tokens_only(golden_root, tmp_path / "checkpoint-500")
    (folder / "modeling_prismatic.py").write_text(code + "\n")
    assert family_of(folder) == family
    assert caplog.records == []


def test_a_guess_is_said_in_one_line_that_names_the_setting(
    golden_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tokens_only(golden_root, tmp_path / "checkpoint-500")
    assert family_of(folder) == "openvla"
    (record,) = caplog.records
    said = record.getMessage()
    assert "\n" not in said
    assert said.startswith(
        f"'{folder}' is read as openvla, but neither its files nor its name tell it from openvla-oft"
    )
    assert "-params 'policy_kwargs:{family: openvla-oft}'" in said
    caplog.clear()
    for family in ("openvla", "openvla-oft"):
        assert family_of(folder, family) == family
    assert caplog.records == []


def test_another_family_than_the_folder_s_own_is_said(
    golden_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tokens_only(golden_root, tmp_path / "openvla-7b-finetuned-libero-spatial")
    assert family_of(folder, "openvla-oft") == "openvla-oft"
    (record,) = caplog.records
    assert record.getMessage() == f"'{folder}' is read as openvla-oft, as asked, but its name or files say openvla"


def test_an_adapter_s_name_tells_of_its_base(golden_root: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "models--RLinf--RLinf-OpenVLAOFT-ManiSkill-Base-Lora" / SNAPSHOT
    assert names_of(adapter, tmp_path / "base") == ("RLinf-OpenVLAOFT-ManiSkill-Base-Lora", "base")


def test_a_family_that_does_not_read_the_layout(golden_root: Path, tmp_path: Path) -> None:
    folder = tokens_only(golden_root, tmp_path / "checkpoint")
    with pytest.raises(BadValue, match="is read as one of: openvla-oft, openvla; got family='pi0'"):
        family_of(folder, "pi0")
