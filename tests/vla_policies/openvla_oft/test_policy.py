"""OpenVLA-OFT's own heads through the life of a checkpoint, and what its folders are opened as."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.vla_policies.conftest import edit_json
from vla_gym.errors import BadValue, UnknownName
from vla_policies import VLAPolicy
from vla_policies.model_folder import Request
from vla_policies.resolver import open_folder, resolve_policy

KEY = "libero_spatial"
STATE = {"use_state": True, "center_crop": False, "camera_resize": "bicubic"}
LORA = {"lora": {"rank": 4, "targets": ["q_proj"]}}
WAYS = pytest.mark.parametrize(
    "way", [pytest.param(LORA, marks=pytest.mark.thorough), {}], ids=["adapter", "all weights"]
)

Observe = Callable[[int], dict[str, Tensor]]


def open_policy(folder: Path, **options: Any) -> VLAPolicy:
    return VLAPolicy.from_pretrained(folder, unnorm_key=KEY, device="cpu", backbone_kwargs=options)


def decide(policy: VLAPolicy, obs: dict[str, Tensor]) -> Tensor:
    sample = policy.act(obs, deterministic=True)
    return torch.cat([sample.action_BKA.flatten(), sample.logprob_BKA.flatten(), sample.value_B])


@pytest.fixture
def obs(observe: Observe) -> dict[str, Tensor]:
    return observe(0)


@WAYS
def test_a_trained_projector_is_saved_and_restored(
    folder: Path, obs: dict[str, Tensor], tmp_path: Path, way: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    policy = open_policy(folder, **STATE, **way)
    before = policy.backbone.proprio.fc1.weight.clone()
    for group in policy.optimizer.param_groups:
        group["lr"] = 0.05
    policy.evaluate(obs, policy.act(obs).record).logprob_BKA.sum().backward()
    policy.optimizer.step()
    trained = policy.backbone.proprio.fc1.weight
    assert not torch.equal(trained, before)
    policy.save_trained(tmp_path)
    opened = VLAPolicy.from_pretrained(tmp_path, device="cpu")
    assert torch.equal(opened.backbone.proprio.fc1.weight, trained)
    restored = open_policy(folder, **STATE, **way)
    held = dict(restored.named_parameters())
    restored.backbone.restore(tmp_path)
    for other in (opened, restored):
        assert torch.equal(decide(other, obs), decide(policy, obs))
    # In place: the optimiser still holds the very same tensors.
    assert all(parameter is held[name] for name, parameter in restored.named_parameters())


@pytest.mark.parametrize(
    ("data", "chunk", "bounds"),
    [("aloha_fold_towel", 25, "min_max"), ("bridge_orig", 5, "q01_q99"), ("libero_goal", 8, "q01_q99")],
)
def test_the_only_data_set_decides_whether_it_is_named_or_not(
    folder: Path, tmp_path: Path, data: str, chunk: int, bounds: str
) -> None:
    # Openvla-oft's constants: ALOHA 25 and the extremes, BRIDGE 5, LIBERO 8.
    only_data_set(folder, tmp_path, data)
    for request in (Request(), Request(unnorm_key=data), Request(suite=data)):
        header = open_folder(tmp_path, replace(request, family="openvla-oft")).header
        assert header.conventions.chunk == chunk
        assert header.model["settings"]["bounds"] == bounds
    asked = Request(family="openvla-oft", options={"chunk": 6})
    assert open_folder(tmp_path, asked).header.conventions.chunk == 6


def only_data_set(source: Path, target: Path, name: str) -> None:
    """The files read before the weights, with one set of statistics, called `name`."""
    for file in source.glob("*.json"):
        shutil.copyfile(file, target / file.name)
    (target / "dataset_statistics.json").unlink()
    edit_json(
        target / "config.json",
        lambda config: config.update(norm_stats={name: next(iter(config["norm_stats"].values()))}),
    )


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, ["head: tokens", "use_state: true"]),
        ({"head": "l1"}, ["use_state: true"]),
        ({"head": "tokens", "use_state": True}, []),
        ({"head": "tokens", "use_state": False}, []),
    ],
)
def test_heads_left_out_without_a_word_are_warned_of_once(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], warned: list[str]
) -> None:
    only_data_set(folder, tmp_path, "libero_goal")
    for name in ("action_head--1_checkpoint.pt", "proprio_projector--1_checkpoint.pt"):
        (tmp_path / name).touch()
    for _ in range(2):
        settings = open_folder(tmp_path, Request(options=options)).header.model["settings"]
    # What is documented stays: tokens, no state.
    assert {"head": "tokens", "use_state": False, **options}.items() <= settings.items()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(warned)
    for message, option in zip(messages, warned, strict=True):
        assert str(tmp_path) in message
        assert f"backbone_kwargs {option}" in message


@pytest.mark.parametrize(
    ("data", "options", "opened"),
    [
        ("libero_goal", {}, ("l1", True, ("image", "wrist_image"))),
        ("bridge_orig", {}, ("l1", True, ("image",))),
        ("libero_goal", {"head": "tokens"}, ("tokens", True, ("image", "wrist_image"))),
        ("libero_goal", {"cameras": ["image"]}, ("l1", True, ("image",))),
    ],
)
def test_a_folder_that_is_only_to_act_opens_as_its_makers_trained_it(
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    data: str,
    options: dict[str, Any],
    opened: tuple[str, bool, tuple[str, ...]],
) -> None:
    only_data_set(folder, tmp_path, data)
    for name in ("action_head--1_checkpoint.pt", "proprio_projector--1_checkpoint.pt"):
        (tmp_path / name).touch()
    header = open_folder(tmp_path, Request(options=options, to_act=True)).header
    settings = header.model["settings"]
    assert (settings["head"], settings["use_state"], header.conventions.cameras) == opened
    assert caplog.records == []


def test_an_environment_of_four_numbers_takes_four_of_seven(folder: Path, obs: dict[str, Tensor]) -> None:
    """As on Meta-World: the network keeps its seven slots a step, of which xyz and the last are read and scored."""
    whole, part = open_policy(folder), open_policy(folder, action_dims=[0, 1, 2, 6])
    assert part.conventions.action_dim == 4
    assert part.action_space.shape == (8, 4)
    of_seven, of_four = whole.act(obs, deterministic=True), part.act(obs, deterministic=True)
    chosen = [0, 1, 2, 6]
    assert torch.equal(of_four.action_BKA, of_seven.action_BKA[..., chosen])
    assert torch.equal(of_four.logprob_BKA, of_seven.logprob_BKA[..., chosen])
    assert torch.equal(part.evaluate(obs, of_four.record).logprob_BKA, of_four.logprob_BKA)
    assert torch.equal(part.backbone.record_of(of_four.action_BKA)["token"], of_four.record["token"])


@pytest.mark.parametrize("dims", [[], [0, 0], [0, 7]])
def test_action_dims_are_different_indices_of_the_checkpoints_numbers(folder: Path, dims: list[int]) -> None:
    with pytest.raises(BadValue, match=r"action_dims of .* must be different indices in 0 \.\. 6"):
        open_policy(folder, action_dims=dims)


def test_an_environment_of_other_actions_names_the_option_that_chooses(folder: Path) -> None:
    policy = resolve_policy(folder, {"unnorm_key": KEY})
    with pytest.raises(BadValue, match=r"action_dim=7.*action_dim=4; backbone_kwargs action_dims chooses"):
        policy.fitted(replace(policy.conventions, action_dim=4, action_spec=None), None)


OPEN_X = ("austin_buds_dataset_converted_externally_to_rlds", "bridge_orig", "fractal20220817_data")
"""Data sets of the base, which a merged fine-tune keeps in its `config.json`."""


@pytest.fixture
def unmerged(folder: Path, tmp_path: Path) -> Path:
    """A training folder of openvla-oft before it is merged: the adapter in a folder of its own, heads and statistics
    beside that; the base knows other data sets and no head."""
    base, run = tmp_path / "openvla-7b", tmp_path / "openvla-7b+libero_spatial_no_noops+b8--150000_chkpt"
    for target in (base, run):
        target.mkdir()
    for file in folder.iterdir():
        if not file.name.startswith(("golden", "value_heads", "dataset_statistics", "action_head", "proprio")):
            shutil.copyfile(file, base / file.name)
    numbers = next(iter(json.loads((base / "config.json").read_text())["norm_stats"].values()))
    edit_json(base / "config.json", norm_stats=dict.fromkeys(OPEN_X, numbers))
    peft_folder = tmp_path / "peft"
    VLAPolicy.from_pretrained(base, "openvla-oft", OPEN_X[1], backbone_kwargs=LORA, device="cpu").save_adapter(
        peft_folder
    )
    (run / "lora_adapter").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(peft_folder / name, run / "lora_adapter" / name)
    for file in folder.glob("*.pt"):
        shutil.copyfile(file, run / file.name)
    statistics = json.loads((folder / "dataset_statistics.json").read_text())
    own = "libero_spatial_no_noops"
    (run / "dataset_statistics.json").write_text(json.dumps({own: statistics[own]}))
    return run


def test_an_unmerged_training_folder_acts_through_its_heads(
    unmerged: Path, folder: Path, obs: dict[str, Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    policy = VLAPolicy.from_pretrained(unmerged, device="cpu", to_act=True)
    assert policy.backbone.family == "openvla-oft"
    assert policy.conventions.cameras == ("image", "wrist_image")
    assert caplog.records == []
    # The adapter is new, and changes nothing: the merged folder acts alike.
    whole = open_policy(folder, head="l1", use_state=True, cameras=["image", "wrist_image"])
    action, merged = (each.act(obs, deterministic=True).action_BKA for each in (policy, whole))
    assert torch.equal(action, merged)


def test_an_unknown_data_set_is_looked_for_where_the_statistics_are(unmerged: Path) -> None:
    with pytest.raises(UnknownName, match=re.escape(f"'{unmerged}' 'bridge'")):
        VLAPolicy.from_pretrained(unmerged, unnorm_key="bridge", device="cpu")


def test_a_head_that_no_folder_has_is_named(unmerged: Path) -> None:
    (unmerged / "proprio_projector--150000_checkpoint.pt").unlink()
    with pytest.raises(BadValue, match=r"lacks proprio_projector--<step>_checkpoint\.pt"):
        VLAPolicy.from_pretrained(unmerged, device="cpu", backbone_kwargs={"use_state": True})


def test_towers_with_film_are_refused(folder: Path, tmp_path: Path) -> None:
    only_data_set(folder, tmp_path, "aloha_fold")
    (tmp_path / "vision_backbone--1_checkpoint.pt").touch()
    with pytest.raises(BadValue, match=r"has image towers with FiLM \(vision_backbone--\*\.pt\)"):
        _ = open_folder(tmp_path, Request(family="openvla-oft")).header
