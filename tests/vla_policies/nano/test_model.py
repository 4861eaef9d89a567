from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies import Conventions
from vla_policies.nano.config import NanoConfig
from vla_policies.nano.model import NanoBackbone

MakeObs = Callable[..., dict[str, np.ndarray]]
OPTIONS = {"size": "tiny", "width": 32, "heads": 2}


@pytest.fixture
def nano(conventions: Conventions) -> NanoBackbone:
    torch.manual_seed(0)
    return NanoBackbone.fresh(conventions, OPTIONS)


def inputs_of(nano: NanoBackbone, obs: dict[str, np.ndarray]):
    return nano.prepare({key: torch.from_numpy(value) for key, value in obs.items()})


def test_shapes(nano: NanoBackbone, make_obs: MakeObs) -> None:
    output = nano(inputs_of(nano, make_obs(5)))
    assert output.logits_BKAV.shape == (5, 2, 4, 256)
    assert output.value_B.shape == (5,)


def test_rows_do_not_depend_on_their_batch(nano: NanoBackbone, make_obs: MakeObs) -> None:
    obs = make_obs(6)
    whole = nano(inputs_of(nano, obs))
    for row in range(6):
        alone = nano(inputs_of(nano, {key: value[row : row + 1] for key, value in obs.items()}))
        assert torch.allclose(alone.logits_BKAV[0], whole.logits_BKAV[row], atol=1e-5)
        assert torch.allclose(alone.value_B[0], whole.value_B[row], atol=1e-5)


def test_a_gradient_reaches_every_parameter(nano: NanoBackbone, make_obs: MakeObs) -> None:
    output = nano(inputs_of(nano, make_obs(4)))
    (output.logits_BKAV.square().mean() + output.value_B.sum()).backward()
    for name, parameter in nano.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


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


@pytest.mark.parametrize("key", ["image", "wrist_image", "state", "instruction"])
def test_a_critic_of_its_own_sees_every_part_of_the_observation(
    conventions: Conventions, make_obs: MakeObs, key: str
) -> None:
    torch.manual_seed(0)
    nano = NanoBackbone.fresh(conventions, {**OPTIONS, "critic": "own"})
    obs = make_obs(3)
    other = {**obs, key: np.roll(obs[key], 1, axis=0)}
    with torch.no_grad():
        first, second = nano(inputs_of(nano, obs)), nano(inputs_of(nano, other))
    assert (first.value_B - second.value_B).abs().min() > 1e-9


@pytest.mark.parametrize("key", ["image", "wrist_image", "state", "instruction"])
def test_every_part_of_the_observation_matters(nano: NanoBackbone, make_obs: MakeObs, key: str) -> None:
    obs = make_obs(3)
    other = {**obs, key: np.roll(obs[key], 1, axis=0)}
    with torch.no_grad():
        first, second = nano(inputs_of(nano, obs)), nano(inputs_of(nano, other))
    assert (first.logits_BKAV - second.logits_BKAV).abs().amax(dim=(1, 2, 3)).min() > 1e-6


def test_cameras_are_told_apart(nano: NanoBackbone, make_obs: MakeObs) -> None:
    obs = make_obs(2)
    swapped = {**obs, "image": obs["wrist_image"], "wrist_image": obs["image"]}
    with torch.no_grad():
        first, second = nano(inputs_of(nano, obs)), nano(inputs_of(nano, swapped))
    assert not torch.allclose(first.value_B, second.value_B, atol=1e-7)


def test_without_state_and_wrist(conventions: Conventions, make_obs: MakeObs) -> None:
    nano = NanoBackbone.fresh(replace(conventions, cameras=("image",), state_dim=0), OPTIONS)
    assert nano(inputs_of(nano, make_obs(2))).value_B.shape == (2,)


def test_bf16_weights_run(nano: NanoBackbone, make_obs: MakeObs) -> None:
    full = nano(inputs_of(nano, make_obs(3)))
    half = nano.bfloat16()
    output = half(inputs_of(half, make_obs(3)))
    assert output.logits_BKAV.dtype == torch.bfloat16
    assert torch.allclose(output.logits_BKAV.float(), full.logits_BKAV, atol=0.1)


@pytest.mark.parametrize(("size", "low", "high"), [("tiny", 0.3e6, 0.7e6), ("small", 2e6, 3e6), ("base", 8e6, 10e6)])
def test_sizes(size: str, low: float, high: float) -> None:
    nano = NanoBackbone.fresh(NanoBackbone.default_conventions, {"size": size})
    assert low < sum(parameter.numel() for parameter in nano.parameters()) < high


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
