from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.vla_policies.conftest import FLOW_CONVENTIONS, edit_json
from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import encode_instruction
from vla_policies import VLAPolicy
from vla_policies.actions.sampling import Sampling
from vla_policies.smolvla.model import SmolVLABackbone

from .conftest import Golden


@pytest.mark.parametrize("scheme", [pytest.param("flow_sde", marks=pytest.mark.thorough), "flow_noise"])
def test_round_trip_in_lerobots_layout(golden: Golden, tmp_path: Path, scheme: str) -> None:
    settings = {"backbone_kwargs": {"scheme": scheme, "num_steps": 2}}
    policy = VLAPolicy.from_pretrained(golden.folder / "checkpoint", device="cpu", **settings)  # type: ignore[arg-type]
    policy.save_pretrained(tmp_path)
    first, second = (load_file(folder / "model.safetensors") for folder in (golden.folder / "checkpoint", tmp_path))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in ("policy_preprocessor", "policy_postprocessor"):
        before, after = (
            json.loads((folder / f"{name}.json").read_text()) for folder in (golden.folder / "checkpoint", tmp_path)
        )
        assert [step["registry_name"] for step in before["steps"]] == [step["registry_name"] for step in after["steps"]]
    before, after = (
        json.loads((folder / "config.json").read_text()) for folder in (golden.folder / "checkpoint", tmp_path)
    )
    assert before.keys() == after.keys()
    # What one scheme trained may be opened with the other, whose noise head then is new.
    again = VLAPolicy.from_pretrained(tmp_path, device="cpu", backbone_kwargs={"scheme": "flow_noise"})
    assert isinstance(again.backbone, SmolVLABackbone)
    assert again.backbone.noise_head is not None
    # Without our own files it is read as lerobot's.
    for name in ("vla_zoo.json", "manifest.json"):
        (tmp_path / name).unlink()
    plain = VLAPolicy.from_pretrained(tmp_path, device="cpu", **settings)  # type: ignore[arg-type]
    first, second = (one.backbone.act(golden.inputs, Sampling(), deterministic=True) for one in (policy, plain))
    assert torch.equal(first.action_BKA, second.action_BKA)


@pytest.mark.parametrize("prefix", ["", pytest.param("so100_", marks=pytest.mark.thorough), "so100-blue_"])
def test_the_layout_before_lerobot_0_4(joint: Golden, tmp_path: Path, prefix: str) -> None:
    """Statistics among the weights, names of compiled training, fewer settings, no language head, no processors."""
    source = joint.folder / "checkpoint"
    flat = load_file(source / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    tensors = {
        name.replace("model.", "model._orig_mod.", 1): tensor
        for name, tensor in load_file(source / "model.safetensors").items()
        if not name.endswith("lm_head.weight")
    }
    for kind in ("mean", "std"):
        tensors[f"normalize_inputs.{prefix}buffer_observation_state.{kind}"] = flat[f"observation.state.{kind}"].clone()
        for owner in ("normalize_targets", "unnormalize_outputs"):
            tensors[f"{owner}.{prefix}buffer_action.{kind}"] = flat[f"action.{kind}"].clone()
    tensors["normalize_inputs.buffer_observation_image.mean"] = torch.full((3, 1, 1), torch.inf)
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    for key in (
        "min_period",
        "max_period",
        "pretrained_path",
        "rtc_config",
        "use_peft",
        "compile_model",
        "compile_mode",
    ):
        del config[key]
    config["vlm_model_name"] = str(joint.folder / "vlm")
    (tmp_path / "config.json").write_text(json.dumps(config))
    backbone = VLAPolicy.from_pretrained(tmp_path, device="cpu").backbone
    assert isinstance(backbone, SmolVLABackbone)
    chunk = backbone.integrate(joint.inputs, joint.tensors["in.noise"], 10)[:, -1]
    torch.testing.assert_close(backbone.processor.to_robot(chunk), joint.tensors["chunk"], rtol=0, atol=1e-5)


def test_an_environment_decides_chunk_and_cameras(joint: Golden) -> None:
    wanted = replace(FLOW_CONVENTIONS, cameras=("image", "wrist_image"), state_dim=8, action_dim=7)
    spaces = wanted.observation_space(), wanted.action_space()
    policy = VLAPolicy(*spaces, lambda _: 1e-3, backbone=joint.folder / "checkpoint")
    assert (policy.conventions.chunk, policy.conventions.image_size) == (4, 64)
    other = replace(wanted, action_dim=9)
    spaces = other.observation_space(), other.action_space()
    with pytest.raises(BadValue, match="have 7 dims, 9 are needed"):
        VLAPolicy(*spaces, lambda _: 1e-3, backbone=joint.folder / "checkpoint")
    options = {"use_statistics": False}
    VLAPolicy(*spaces, lambda _: 1e-3, backbone=joint.folder / "checkpoint", backbone_kwargs=options)


def test_a_map_of_names_swaps_the_images_and_is_written_again(joint: Golden, tmp_path: Path) -> None:
    folder = tmp_path / "renamed"
    shutil.copytree(joint.folder / "checkpoint", folder)
    shutil.copytree(joint.folder / "vlm", folder / "vlm")
    path, first, second = folder / "policy_preprocessor.json", "observation.images.image", "observation.images.image2"
    record = json.loads(path.read_text())
    swapped = {first: "observation.images.camera2", second: "observation.images.camera1"}
    record["steps"][0]["config"]["rename_map"] = swapped
    path.write_text(json.dumps(record))
    obs = {name: np.full((1, 64, 64, 3), level, np.uint8) for name, level in (("image", 255), ("wrist_image", 0))}
    obs |= {"state": np.zeros((1, 8), np.float32), "instruction": encode_instruction("push")[None]}
    # White becomes 1, black -1.
    levels = {}
    for name in (joint.folder / "checkpoint", folder):
        policy = VLAPolicy.from_pretrained(name, device="cpu")
        levels[name] = policy.prepare(obs).pixels_BMCHW.amax(dim=(0, 2, 3, 4)).tolist()
    assert list(levels.values()) == [[1.0, -1.0], [-1.0, 1.0]]
    policy.save_pretrained(tmp_path / "saved")
    steps = json.loads((tmp_path / "saved" / "policy_preprocessor.json").read_text())["steps"]
    assert steps[0]["config"]["rename_map"] == swapped
    again = VLAPolicy.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.conventions.cameras == ("wrist_image", "image")


@pytest.fixture
def trained_by_lerobot(joint: Golden, tmp_path: Path) -> Path:
    """An adapter's folder as lerobot writes it: its own settings, and processors with its own statistics."""
    base, folder = joint.folder / "checkpoint", tmp_path / "fine-tune"
    VLAPolicy.from_pretrained(base, device="cpu", backbone_kwargs={"lora": {"rank": 4}}).save_adapter(tmp_path / "peft")
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(tmp_path / "peft" / name, folder / name)
    for file in (base / "config.json", *base.glob("policy_*")):
        shutil.copyfile(file, folder / file.name)
    edit_json(folder / "config.json", use_peft=True, n_action_steps=3, num_steps=7)
    for path in folder.glob("policy_*.safetensors"):
        save_file({name: 10 * tensor for name, tensor in load_file(path).items()}, path)
    return folder


def test_an_adapter_trained_by_lerobot_has_its_own_settings_and_statistics(
    joint: Golden, trained_by_lerobot: Path, tmp_path: Path
) -> None:
    wanted = [10 * number for number in joint.backbone.config.preprocessing.action.mean]
    policy = VLAPolicy.from_pretrained(trained_by_lerobot, device="cpu")
    assert policy.backbone.has_adapter
    assert policy.conventions.chunk == 3
    for opened in (policy, saved_again(policy, tmp_path)):
        assert opened.backbone.config.preprocessing.action.mean == pytest.approx(wanted)
        assert opened.backbone.config.flow.num_steps == 7


def saved_again(policy: VLAPolicy, tmp_path: Path) -> VLAPolicy:
    policy.save_trained(tmp_path / "again")
    return VLAPolicy.from_pretrained(tmp_path / "again", device="cpu")


def test_a_folder_of_ours_has_its_one_data_set(joint: Golden, tmp_path: Path) -> None:
    VLAPolicy.from_pretrained(joint.folder / "checkpoint", device="cpu").save_pretrained(tmp_path)
    assert VLAPolicy.from_pretrained(tmp_path, device="cpu", unnorm_key="default").backbone.family == "smolvla"
    with pytest.raises(UnknownName, match=r"no unnorm_key in .* 'nonsense'. Known: default"):
        VLAPolicy.from_pretrained(tmp_path, device="cpu", unnorm_key="nonsense")
