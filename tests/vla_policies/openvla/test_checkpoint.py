"""Opening, damaging and writing folders in OpenVLA's layout, for both families."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.vla_policies.conftest import edit_json
from vla_gym import find_benchmark
from vla_gym.errors import BadValue, MissingDependency
from vla_gym.specs import ActionSpec
from vla_policies import VLAPolicy
from vla_policies.model_folder import Request
from vla_policies.resolver import open_folder

Observe = Callable[[int], dict[str, Tensor]]
KEY = "libero_spatial"


def copied(source: Path, target: Path) -> Path:
    """A copy to damage, without the golden numbers."""
    ignored = shutil.ignore_patterns("golden*", "value_heads*")
    shutil.copytree(source, target, ignore=ignored, copy_function=shutil.copyfile)
    target.chmod(0o755)
    return target


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return copied(folder, tmp_path / "checkpoint")


def open_policy(name: Path, **kwargs: Any) -> VLAPolicy:
    return VLAPolicy.from_pretrained(name, device="cpu", **{"unnorm_key": KEY, **kwargs})


def test_a_published_folder_becomes_a_policy(folder: Path) -> None:
    policy = open_policy(folder)
    assert policy.backbone.family == "openvla"
    assert policy.conventions.action_dim == 7
    assert policy.conventions.chunk == 1
    assert policy.action_space.shape == (1, 7)
    settings = policy.backbone.config.settings
    assert policy.backbone.config.unnorm_key == "libero_spatial_no_noops"
    assert (settings.camera_resize, settings.center_crop) == ("jpeg_lanczos3", True)


def test_what_is_not_of_libero_is_not_cropped(folder: Path) -> None:
    settings = open_policy(folder, unnorm_key="bridge_orig").backbone.config.settings
    assert (settings.camera_resize, settings.center_crop) == ("bicubic", False)


def test_the_gripper_is_written_as_the_environment_reads_it(folder: Path) -> None:
    token = torch.arange(256)[:, None].expand(256, 7)
    closing = open_policy(folder).backbone
    spec = ActionSpec(rotation="axis_angle", gripper="plus_one_opens", frame="delta", image="mirrored")
    opening = open_policy(folder, action_spec=spec).backbone
    assert closing.conventions.action_spec is not None
    assert closing.conventions.action_spec.gripper == "plus_one_closes"
    assert opening.conventions.action_spec == spec
    closed, opened = closing.codec.decode(token), opening.codec.decode(token)
    # Small ids are large numbers: 1 = open in the data, so -1 = open in LIBERO.
    assert closed[0, -1] == pytest.approx(-1.0)
    assert closed[255, -1] == pytest.approx(1.0, abs=2e-5)
    assert torch.equal(closed[:, :6], opened[:, :6])
    assert torch.equal(closed[:, 6].sign(), -opened[:, 6].sign())


@pytest.mark.parametrize(("gripper", "closed"), [("plus_one_closes", 1.0), ("plus_one_opens", -1.0)])
def test_an_experts_gripper_is_written_as_in_training(folder: Path, gripper: str, closed: float) -> None:
    spec = ActionSpec(rotation="axis_angle", gripper=gripper, frame="delta", image="mirrored")  # type: ignore[arg-type]
    codec = open_policy(folder, action_spec=spec).backbone.codec
    expert = torch.zeros(2, 7)
    expert[:, 6] = torch.tensor([closed, -closed])
    # Closed is 0 in the data, open is 1, and id = 32000 - digitize: 128 of the 256 edges -1, -253/255, ..., -1/255,
    # 1/255, ..., 1 are <= 0, and all of them <= 1.
    assert (codec.encode(expert)[:, 6] + 31744).tolist() == [32000 - 128, 32000 - 256]
    token = torch.arange(256)[:, None].expand(256, 7)
    action = codec.decode(token)
    assert torch.equal(codec.encode(action), token)
    assert torch.equal(codec.decode(codec.encode(action)), action)


def spec_of(env_id: str) -> ActionSpec:
    try:
        return find_benchmark(env_id).action_spec
    except MissingDependency as error:
        pytest.skip(str(error))


def test_libero_s_gripper_is_turned_and_other_ways_to_write_actions_are_refused(folder: Path) -> None:
    spec = spec_of("LIBERO-Spatial")
    for fits in (spec, replace(spec, gripper="plus_one_opens")):
        assert open_policy(folder, action_spec=fits).conventions.action_spec == fits
    for unfit in (replace(spec, rotation="euler_xyz"), replace(spec, frame="absolute")):
        with pytest.raises(BadValue, match="not written as the environment reads them"):
            open_policy(folder, action_spec=unfit)


def test_the_statistics_say_how_actions_are_written(folder: Path) -> None:
    bridge, libero = spec_of("ManiSkill-Plate25"), spec_of("LIBERO-Spatial")
    policy = open_policy(folder, unnorm_key="bridge_orig", action_spec=bridge)
    assert policy.conventions.action_spec == bridge
    for field in ("rotation", "units", "image"):
        both = f"{field}: environment '{getattr(libero, field)}', policy '{getattr(bridge, field)}'"
        with pytest.raises(BadValue, match=both):
            open_policy(folder, unnorm_key="bridge_orig", action_spec=libero)


def edit_weights(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_old_rotary_tensors_are_let_pass(copy: Path) -> None:
    name = "language_model.model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(copy, lambda tensors: tensors.update({name: torch.zeros(8)}))
    open_policy(copy)


def test_a_critic_in_the_weights_says_how_many_values_it_gives(golden_root: Path, tmp_path: Path) -> None:
    """As in RLinf's PPO checkpoints with a value for each action of the chunk."""
    oft_copy = copied(golden_root / "openvla_oft_tiny", tmp_path / "oft")
    heads = load_file(golden_root / "openvla_oft_tiny" / "value_heads.safetensors")
    critic = {key.removeprefix("out8."): value for key, value in heads.items() if key.startswith("out8.")}
    edit_weights(oft_copy, lambda tensors: tensors.update(critic))
    backbone = open_policy(oft_copy).backbone
    assert backbone.step_values
    assert torch.equal(backbone.value_head.mlp[4].weight, critic["value_head.mlp.4.weight"].float())
    assert open_folder(oft_copy, Request(unnorm_key=KEY)).header.model["settings"]["value_outputs"] == 8
    with pytest.raises(BadValue, match=r"'mlp.4.weight' is \(8, 128\), the model needs \(1, 128\)"):
        open_policy(oft_copy, backbone_kwargs={"value_outputs": 1})


def test_a_tokenizer_that_is_not_llamas_is_refused(copy: Path) -> None:
    edit_json(copy / "tokenizer.json", lambda values: values.update(added_tokens=[], post_processor=None))
    edit_json(copy / "tokenizer.json", lambda values: rename(values["model"]["vocab"], "<s>", "<bos>"))
    with pytest.raises(BadValue, match=r"tokenizer\.json of .* '<s>'.* must be id 1, got no such piece; take the"):
        open_policy(copy)


def rename(values: dict[str, Any], old: str, new: str) -> None:
    values[new] = values.pop(old)


def test_the_regression_head_acts_but_does_not_train(golden_root: Path, observe: Observe) -> None:
    policy = open_policy(golden_root / "openvla_oft_tiny", backbone_kwargs={"head": "l1"})
    sample = policy.act(observe(0))
    assert sample.action_BKA.shape == (1, 8, 7)
    with pytest.raises(BadValue, match="regression head has no distribution"):
        policy.evaluate(observe(0), {"token": torch.zeros(1, 8, 7)})
    with pytest.raises(BadValue, match="regression head has no distribution"):
        policy.get_distribution(observe(0))


# Round trips ---------------------------------------------------------------------------------------


def test_the_saved_folder_has_the_official_layout(folder: Path, tmp_path: Path) -> None:
    open_policy(folder).save_pretrained(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    official = {path.name for path in folder.iterdir() if not path.name.startswith("golden")}
    assert written == official | {"manifest.json", "value_head.safetensors"}
    saved, original = load_file(tmp_path / "model.safetensors"), load_file(folder / "model.safetensors")
    assert saved.keys() == original.keys()
    assert all(torch.equal(saved[key], original[key].float()) for key in saved)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("vla_zoo")
    assert config == json.loads((folder / "config.json").read_text())
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
