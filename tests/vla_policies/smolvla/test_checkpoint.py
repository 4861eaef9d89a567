from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.vla_policies.conftest import edit_json
from vla_gym import find_benchmark
from vla_gym.errors import MissingDependency
from vla_policies import Conventions, VLAPolicy
from vla_policies.smolvla.checkpoint import SETTINGS, published_names, with_absent_cameras
from vla_policies.smolvla.config import NetworkShape, SmolVLAConfig, tiny_config

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
    features = {"observation.state": {"type": "STATE", "shape": [declared]}} | {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 256, 256]} for name in pictures
    }
    vlm = str(joint.folder / "vlm")
    edit_json(folder / "config.json", input_features=features, empty_cameras=empty, vlm_model_name=vlm)
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
