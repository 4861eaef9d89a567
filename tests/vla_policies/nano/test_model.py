from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies import Conventions, VLAPolicy
from vla_policies.actions.sampling import Sampling
from vla_policies.nano.config import NanoConfig, config_from_options, fit_image_size
from vla_policies.nano.flow_model import NanoFlowBackbone
from vla_policies.nano.model import NanoBackbone, NanoTrunk
from vla_policies.processing.observations import observation_keys
from vla_policies.types import PolicyInputs

MakeObs = Callable[..., dict[str, np.ndarray]]
MakePolicy = Callable[..., VLAPolicy]
OPTIONS = {"size": "tiny", "width": 32, "heads": 2}


@pytest.fixture
def nano(conventions: Conventions) -> NanoBackbone:
    torch.manual_seed(0)
    return NanoBackbone.fresh(conventions, OPTIONS)


def inputs_of(nano: NanoTrunk, obs: dict[str, np.ndarray]) -> PolicyInputs:
    tensors = {key: torch.from_numpy(value) for key, value in obs.items()}
    inputs, kept = nano.prepare(tensors), nano.kept
    if kept is None:
        return inputs
    keys = map(tuple, observation_keys(tensors).tolist())
    made = kept.rows(list(keys), lambda places: nano.features(inputs.mapped(lambda x: x[places])))
    return replace(inputs, features=made)


@pytest.mark.parametrize("part", ["logits_BKAV", "value_B"])
def test_actor_and_critic_each_teach_all_senses(nano: NanoBackbone, make_obs: MakeObs, part: str) -> None:
    getattr(nano(inputs_of(nano, make_obs(4))), part).square().mean().backward()
    senses = {"words.high.weight", "vision.conv1.weight", "state.0.weight", "camera", "blocks.0.qkv.weight"}
    grads = {name: p.grad for name, p in nano.named_parameters() if name in senses}
    assert set(grads) == senses
    assert all(grad is not None and grad.abs().max() > 0 for grad in grads.values())


def test_a_critic_of_its_own_leaves_the_policy_alone(conventions: Conventions, make_obs: MakeObs) -> None:
    torch.manual_seed(0)
    nano = NanoBackbone.fresh(conventions, {**OPTIONS, "critic": "own"})
    inputs = inputs_of(nano, make_obs(4))
    nano(inputs).value_B.square().sum().backward()
    moved = {name for name, p in nano.named_parameters() if p.grad is not None}
    assert moved == {name for name, _ in nano.named_parameters() if name.startswith("value_")}
    critic = {id(p) for p in nano.critic_parameters()}
    assert critic == {id(p) for name, p in nano.named_parameters() if name in moved}
    before = nano(inputs)
    with torch.no_grad():
        for parameter in nano.critic_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    after = nano(inputs)
    assert torch.equal(after.logits_BKAV, before.logits_BKAV)
    assert not torch.allclose(after.value_B, before.value_B)


def test_fresh_flow_weights_act_with_the_asked_spread_and_value_nothing(
    conventions: Conventions, make_obs: MakeObs
) -> None:
    torch.manual_seed(0)
    options = {**OPTIONS, "initial_std": 0.3, "num_steps": 50, "noise_level": 0.05}
    flow = NanoFlowBackbone.fresh(replace(conventions, chunk=8), options)
    sample = flow.act(inputs_of(flow, make_obs(64)), Sampling(), deterministic=False)
    assert sample.record["chain"][:, -1].std().item() == pytest.approx(0.3, rel=0.1)
    assert sample.value_B.abs().max() < 0.05


def test_the_image_size_is_fitted_and_kept(conventions: Conventions) -> None:
    nano = NanoBackbone.fresh(replace(conventions, image_size=100), OPTIONS)
    assert (nano.conventions.image_size, nano.config.grid) == (96, 8)
    again = NanoBackbone.from_config(nano.conventions, nano.config_json(), "here")
    assert again.config == nano.config


def test_an_image_that_does_not_fit_the_grid_raises(conventions: Conventions) -> None:
    config = NanoConfig(width=32, heads=2, depth=1, readers=1, grid=5)
    with pytest.raises(BadValue, match="divides by 20, got 32"):
        NanoBackbone(conventions, config)


def test_where_things_are_is_told_from_the_pictures_and_not_from_the_arm(
    conventions: Conventions, make_obs: MakeObs
) -> None:
    torch.manual_seed(0)
    nano = NanoBackbone.fresh(conventions, {**OPTIONS, "privileged_dim": 3})
    nano(inputs_of(nano, make_obs(4))).privileged_BP.square().sum().backward()  # type: ignore[union-attr]
    taught = {name for name, p in nano.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {"vision.conv1.weight", "vision.points.weight", "points.weight"} <= taught
    assert not any(name.startswith(("state", "blocks", "readers")) for name in taught)


@pytest.fixture
def encoded(nano: NanoBackbone) -> list[int]:
    """Numbers of observations that the eye was given, one a call."""
    sizes: list[int] = []
    nano.vision.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    return sizes


def test_an_observation_is_encoded_once_while_the_critic_is_trained_alone(
    nano: NanoBackbone, make_obs: MakeObs, encoded: list[int]
) -> None:
    obs = make_obs(6)
    others = {key: value[[5, 1, 3]] for key, value in obs.items()}
    expected, of_others = nano(inputs_of(nano, obs)), nano(inputs_of(nano, others))
    encoded.clear()
    with nano.critic_trained_alone():
        assert nano.kept is not None
        first = nano(inputs_of(nano, {key: value[:4] for key, value in obs.items()}))
        second = nano(inputs_of(nano, obs))
        third = nano(inputs_of(nano, others))
        third.value_B.sum().backward()
    cameras = len(nano.conventions.cameras)
    assert encoded == [4] * cameras + [2] * cameras
    torch.testing.assert_close(first.value_B, expected.value_B[:4])
    torch.testing.assert_close(second.logits_BKAV, expected.logits_BKAV)
    torch.testing.assert_close(third.value_B, of_others.value_B)
    assert nano.vision.conv1.weight.grad is None
    assert nano.value_head.query.grad is not None


@pytest.fixture(params=["nano", "nano-flow"])
def frozen(request: pytest.FixtureRequest, make_policy: MakePolicy, tmp_path: Path) -> VLAPolicy:
    """A policy that was trained, and is opened again to be trained without its encoder."""
    make_policy(backbone=request.param, backbone_kwargs=OPTIONS).save_pretrained(tmp_path / "trained")
    return opened(tmp_path / "trained", freeze_encoder=True)


def opened(folder: Path, **options: object) -> VLAPolicy:
    return VLAPolicy.from_pretrained(folder, device="cpu", backbone_kwargs=options)


def test_a_frozen_encoder_is_not_trained(frozen: VLAPolicy, make_obs: MakeObs) -> None:
    obs = make_obs(4)
    result = frozen.evaluate(obs, frozen.act(obs).record)
    (result.logprob_BKA.sum() + result.value_B.sum()).backward()
    trained = {name.split(".")[0] for name, p in frozen.backbone.named_parameters() if p.grad is not None}
    assert {"value_head"} < trained
    assert not {"words", "sentence_norm", "vision", "camera", "points", "state", "blocks"} & trained
    assert all(p.requires_grad == (p.grad is not None) for p in frozen.backbone.parameters())


def test_a_frozen_encoder_sees_an_observation_once_to_act_and_to_learn(frozen: VLAPolicy, make_obs: MakeObs) -> None:
    obs, sizes = make_obs(6), []
    frozen.backbone.vision.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    sample = frozen.act(obs)
    for rows in ([0, 4], [5, 1, 3]):
        part = {key: value[rows] for key, value in obs.items()}
        result = frozen.evaluate(part, {key: value[rows] for key, value in sample.record.items()})
        torch.testing.assert_close(result.logprob_BKA, sample.logprob_BKA[rows])
    with frozen.backbone.critic_trained_alone():
        frozen.evaluate(obs, sample.record)
    assert frozen.backbone.kept is not None
    assert sizes == [6] * 2  # cameras


def test_a_checkpoint_says_that_its_encoder_is_frozen_until_it_is_told_otherwise(
    frozen: VLAPolicy, make_obs: MakeObs, tmp_path: Path
) -> None:
    frozen.save_pretrained(tmp_path / "again")
    again, thawed = opened(tmp_path / "again"), opened(tmp_path / "again", freeze_encoder=False)
    assert again.backbone.kept is not None
    assert thawed.backbone.kept is None
    assert all(p.requires_grad for p in thawed.backbone.parameters())
    obs = make_obs(3)
    assert np.array_equal(thawed.predict(obs, deterministic=True)[0], frozen.predict(obs, deterministic=True)[0])
    with pytest.raises(BadValue, match=r"backbone_kwargs are for fresh weights; .*'critic'"):
        opened(tmp_path / "again", freeze_encoder=True, critic="own")
    frozen.save(str(tmp_path / "sb3.pth"))
    assert VLAPolicy.load(str(tmp_path / "sb3.pth"), device="cpu").backbone.kept is not None


def test_pixels_by_hand(nano: NanoBackbone, make_obs: MakeObs) -> None:
    obs = make_obs(2)
    obs["image"][0, 5, 7] = [0, 255, 51]
    inputs = inputs_of(nano, obs)
    assert inputs.pixels_BMCHW.shape == (2, 2, 3, 32, 32)
    # 51 / 127.5 - 1 = -0.6
    assert inputs.pixels_BMCHW[0, 0, :, 5, 7].tolist() == pytest.approx([-1.0, 1.0, -0.6], abs=1e-6)


def test_larger_images_are_averaged_down(nano: NanoBackbone, make_obs: MakeObs) -> None:
    obs = make_obs(1, size=64)
    obs["image"][:] = 255
    obs["image"][:, :32] = 0
    pixels = inputs_of(nano, obs).pixels_BMCHW[0, 0]
    assert pixels.shape == (3, 32, 32)
    assert torch.allclose(pixels[:, :15], torch.tensor(-1.0))
    assert torch.allclose(pixels[:, 17:], torch.tensor(1.0))


@pytest.mark.parametrize(("image_size", "seen"), [(32, 32), (96, 96), (100, 96), (128, 128), (224, 224), (20, 32)])
def test_the_image_is_cut_to_a_multiple(image_size: int, seen: int) -> None:
    assert fit_image_size(image_size, grid=8) == seen


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"width": 30, "heads": 4}, "width"),
        ({"depth": 0}, "depth"),
        ({"bin_features": 7}, "bin_features"),
        ({"initial_std": 0.0}, "initial_std"),
    ],
)
def test_impossible_shapes_raise(change: dict, word: str) -> None:
    shape = {"width": 32, "heads": 2, "depth": 1, "readers": 1, "grid": 4}
    with pytest.raises(BadValue, match=word):
        NanoConfig(**{**shape, **change})


def test_sizes_that_fill_memory_are_refused_before_it_is_taken() -> None:
    # 128 blocks x 4096^2 x (4 + 2 x 3) = 2.1e10
    with pytest.raises(BadValue, match="21474836480"):
        config_from_options({"width": 4096, "heads": 32, "depth": 125, "readers": 3}, 64)
