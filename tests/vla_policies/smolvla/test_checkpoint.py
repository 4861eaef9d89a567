from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vla_gym import find_benchmark
from vla_gym.errors import MissingDependency
from vla_gym.observation import encode_instruction
from vla_policies import Conventions, VLAPolicy
from vla_policies.conventions import CAMERA_KEYS
from vla_policies.smolvla.checkpoint import SETTINGS, published_names, read_config, with_absent_cameras
from vla_policies.smolvla.config import NetworkShape, SmolVLAConfig, tiny_config
from vla_policies.smolvla.network import SmolVLANetwork

from .conftest import Golden


def declared(*cameras: str, empty: int) -> SmolVLAConfig:
    features = {name: {"type": "VISUAL", "shape": [3, 64, 64]} for name in cameras}
    values = {**SETTINGS, "empty_cameras": empty, "input_features": features}
    config = tiny_config()
    return SmolVLAConfig(
        network=NetworkShape(),
        preprocessing=config.preprocessing,
        learning=config.learning,
        flow=config.flow,
        published=values,
    )


@pytest.mark.parametrize(
    ("empty", "present", "blocks"),
    # Three declared and `empty` more that are never there: of those absent, `empty` are filled in.
    [(0, 2, 0), (1, 2, 1), (1, 3, 1), (2, 1, 2)],
)
def test_absent_cameras(empty: int, present: int, blocks: int) -> None:
    names = [f"observation.images.camera{number}" for number in (1, 2, 3)]
    names += [f"observation.images.empty_camera_{number}" for number in range(empty)]
    assert with_absent_cameras(declared(*names, empty=empty), present).network.empty_blocks == blocks


def test_old_names() -> None:
    names = ("model._orig_mod.state_proj.bias", "normalize_inputs.so100_buffer_observation_state.mean", "model.x")
    assert list(published_names(dict.fromkeys(names))) == ["model.state_proj.bias", "model.x"]  # type: ignore[arg-type]


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 12}


@pytest.mark.parametrize(
    ("settings", "text", "vision", "cameras"),
    [
        # An expert half as wide on three layers, all cross.
        (
            {"num_vlm_layers": 3, "self_attn_every_n_layers": 0, "expert_width_multiplier": 0.5},
            {"hidden_size": 40, **HEADS},
            {"patch_size": 4, "image_size": 32, "hidden_size": 24, "num_attention_heads": 2},
            1,
        ),
        # Every third layer joint, nothing cut, brackets around pictures that are there and around an absent one.
        (
            {"num_vlm_layers": 0, "self_attn_every_n_layers": 3, "add_image_special_tokens": True, "empty_cameras": 1},
            {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 6},
            {"num_hidden_layers": 1},
            3,
        ),
        # All joint, no absent camera, other paddings of state and action.
        (
            {"attention_mode": "self_attn", "empty_cameras": 0, "max_state_dim": 9, "max_action_dim": 8},
            {"intermediate_size": 72, "num_hidden_layers": 4, "num_key_value_heads": 3},
            {},
            2,
        ),
        # Half as many expert layers, text as long as the longest.
        (
            {"num_expert_layers": 2, "self_attn_every_n_layers": -1, "pad_language_to": "longest", "chunk_size": 9},
            {"rms_norm_eps": 1e-4},
            {},
            2,
        ),
    ],
)
def test_folders_of_other_sizes_open_act_and_come_back(
    joint: Golden, tmp_path: Path, settings: dict[str, Any], text: dict[str, Any], vision: dict[str, Any], cameras: int
) -> None:
    folder, side = tmp_path / "checkpoint", vision.get("image_size", 64)
    shutil.copytree(joint.folder / "checkpoint", folder)
    shutil.copytree(joint.folder / "vlm", tmp_path / "vlm")
    vlm, config = read_json(tmp_path / "vlm"), read_json(folder)
    vlm["text_config"] |= text
    vlm["vision_config"] |= vision
    features = {key: value for key, value in config["input_features"].items() if "images" not in key}
    features |= {f"observation.images.view{k}": {"type": "VISUAL", "shape": [3, 40, 60]} for k in range(cameras)}
    config |= {**settings, "input_features": features, "resize_imgs_with_padding": [side, side]}
    for where, values in ((tmp_path / "vlm", vlm), (folder, config)):
        (where / "config.json").write_text(json.dumps(values))
    shape = read_config(folder, config, None).network
    torch.manual_seed(0)
    network = nn.ModuleDict({"model": SmolVLANetwork(shape)})
    save_file({name: x.contiguous() for name, x in network.state_dict().items()}, folder / "model.safetensors")

    policy = VLAPolicy.from_pretrained(folder, device="cpu")
    present = min(cameras, 2)
    assert policy.conventions.cameras == CAMERA_KEYS[:present]
    obs = {key: torch.randint(0, 256, (2, 40, 60, 3), dtype=torch.uint8) for key in policy.conventions.cameras}
    obs["state"] = torch.randn(2, 8)
    obs["instruction"] = torch.stack([torch.from_numpy(encode_instruction(x)) for x in ("open it", "reach the block")])
    sample = policy.act(obs)
    assert sample.action_BKA.shape == (2, 6, 7)
    result = policy.evaluate(obs, sample.record)
    assert torch.equal(result.logprob_BKA, sample.logprob_BKA)
    result.logprob_BKA.sum().backward()
    policy.save_pretrained(tmp_path / "again")
    again = VLAPolicy.from_pretrained(tmp_path / "again", device="cpu")
    assert torch.equal(again.act(obs, deterministic=True).action_BKA, policy.act(obs, deterministic=True).action_BKA)


def read_json(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.parametrize(
    ("env_id", "pictures", "empty", "declared", "used"),
    [
        ("LIBERO-Spatial", ("image", "image2"), 0, 8, ("image", "wrist_image")),
        # The published config declares a state of 6 where the statistics, which count, have 8.
        ("LIBERO-Spatial", ("camera1", "camera2", "camera3"), 1, 6, ("image", "wrist_image")),
        ("MetaWorld/reach", ("camera1", "camera2", "camera3"), 2, 6, ("image",)),
    ],
)
def test_published_fine_tunes_fit_their_benchmark(
    joint: Golden,
    tmp_path: Path,
    env_id: str,
    pictures: tuple[str, ...],
    empty: int,
    declared: int,
    used: tuple[str, ...],
) -> None:
    """State and cameras are the benchmark's, whose own tests hold flips and the state's layout to the original."""
    try:
        benchmark = find_benchmark(env_id)
    except MissingDependency as error:
        pytest.skip(str(error))
    dims = {"state": benchmark.state_dim, "action": benchmark.action_dim}
    assert benchmark.cameras[: len(used)] == used
    assert benchmark.action_spec.gripper == "plus_one_closes"
    folder = tmp_path / "checkpoint"
    shutil.copytree(joint.folder / "checkpoint", folder)
    config = read_json(folder)
    config["input_features"] = {"observation.state": {"type": "STATE", "shape": [declared]}} | {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 256, 256]} for name in pictures
    }
    config |= {"empty_cameras": empty, "vlm_model_name": str(joint.folder / "vlm")}
    (folder / "config.json").write_text(json.dumps(config))
    numbers = {
        f"{name}.{kind}": torch.ones(dims[part])
        for part, name in (("state", "observation.state"), ("action", "action"))
        for kind in ("mean", "std")
    }
    save_file(numbers, folder / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    alone = VLAPolicy.from_pretrained(folder, device="cpu").conventions
    assert (alone.state_dim, alone.action_dim) == (benchmark.state_dim, benchmark.action_dim)
    wanted = Conventions(
        cameras=used, image_size=256, state_dim=benchmark.state_dim, chunk=2, action_dim=benchmark.action_dim
    )
    spaces = wanted.observation_space(), wanted.action_space()
    policy = VLAPolicy(*spaces, lambda _: 1e-3, backbone=folder, action_spec=benchmark.action_spec)
    assert policy.conventions.cameras == used
