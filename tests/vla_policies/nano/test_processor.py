from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies import Conventions
from vla_policies.nano.processor import prepare_inputs
from vla_policies.processing.word_hash import tokenize

MakeObs = Callable[..., dict[str, np.ndarray]]


def tensors(obs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(value) for key, value in obs.items()}


def test_pixels_by_hand(conventions: Conventions, make_obs: MakeObs) -> None:
    obs = tensors(make_obs(2))
    obs["image"][0, 5, 7] = torch.tensor([0, 255, 51], dtype=torch.uint8)
    inputs = prepare_inputs(obs, conventions)
    assert inputs.pixels_BMCHW.shape == (2, 2, 3, 32, 32)
    # 51 / 127.5 - 1 = -0.6
    assert inputs.pixels_BMCHW[0, 0, :, 5, 7].tolist() == pytest.approx([-1.0, 1.0, -0.6], abs=1e-6)


def test_channel_first_images_give_the_same(conventions: Conventions, make_obs: MakeObs) -> None:
    last = tensors(make_obs(2))
    first = {key: value.permute(0, 3, 1, 2) if "image" in key else value for key, value in last.items()}
    assert torch.equal(prepare_inputs(last, conventions).pixels_BMCHW, prepare_inputs(first, conventions).pixels_BMCHW)


def test_larger_images_are_averaged_down(conventions: Conventions, make_obs: MakeObs) -> None:
    obs = tensors(make_obs(1, size=64))
    obs["image"][:] = 255
    obs["image"][:, :32] = 0
    pixels = prepare_inputs(obs, conventions).pixels_BMCHW[0, 0]
    assert pixels.shape == (3, 32, 32)
    assert torch.allclose(pixels[:, :15], torch.tensor(-1.0))
    assert torch.allclose(pixels[:, 17:], torch.tensor(1.0))


def test_words_and_mask(conventions: Conventions, make_obs: MakeObs) -> None:
    inputs = prepare_inputs(tensors(make_obs(3)), conventions)
    assert inputs.text_mask_BL.sum(dim=1).tolist() == [4, 7, 1]
    assert tuple(inputs.text_BL[0, :4].tolist()) == tokenize("reach the red block")


def test_without_state_there_is_none(conventions: Conventions, make_obs: MakeObs) -> None:
    assert prepare_inputs(tensors(make_obs(1)), replace(conventions, state_dim=0)).state_BS is None


def test_the_observation_is_left_as_it_was(conventions: Conventions, make_obs: MakeObs) -> None:
    obs = tensors(make_obs(2))
    before = {key: value.clone() for key, value in obs.items()}
    prepare_inputs(obs, conventions)
    assert all(torch.equal(obs[key], before[key]) for key in obs)


@pytest.mark.parametrize("image", [torch.zeros(2, 32, 32, 3), torch.zeros(2, 32, 32, 4, dtype=torch.uint8)])
def test_images_that_are_not_uint8_rgb_raise(conventions: Conventions, make_obs: MakeObs, image: torch.Tensor) -> None:
    with pytest.raises(BadValue, match="'image' must be uint8"):
        prepare_inputs({**tensors(make_obs(2)), "image": image}, conventions)


def test_bytes_that_are_no_text_raise(conventions: Conventions, make_obs: MakeObs) -> None:
    obs = tensors(make_obs(1))
    obs["instruction"][0, :2] = torch.tensor([0xC3, 0x28], dtype=torch.uint8)
    with pytest.raises(BadValue, match="not UTF-8"):
        prepare_inputs(obs, conventions)
    obs["instruction"][:] = 0
    with pytest.raises(BadValue, match="holds no word"):
        prepare_inputs(obs, conventions)
    with pytest.raises(BadValue, match=r"must be bytes \[B, 160\]"):
        prepare_inputs({**obs, "instruction": obs["instruction"][:, :100]}, conventions)
