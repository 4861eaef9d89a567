from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies import Conventions
from vla_policies.pi0.config import NetworkShape, Preprocessing, tiny_config
from vla_policies.pi0.processor import (
    Pi0Processor,
    paligemma_encoder,
    pi0_text,
    resize_pil,
    resize_with_pad,
    state_bins,
)
from vla_policies.processing.statistics import Statistics
from vla_policies.types import PolicyInputs

CONVENTIONS = Conventions(cameras=("image",), image_size=56, state_dim=3, chunk=4, action_dim=2)
SHAPE: NetworkShape = tiny_config("pi0").network
STATE = Statistics(mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 0.5), q01=(-1.0, 0.0, 0.0), q99=(1.0, 4.0, 1.0))
ACTION = Statistics(mean=(0.1, -0.2, 9.0), std=(0.5, 0.25, 9.0), q01=(-0.5, 0.0, 0.0), q99=(0.5, 0.5, 1.0))


def processor(**preprocessing: object) -> Pi0Processor:
    with patch("vla_policies.pi0.processor.paligemma_encoder", lambda _: lambda text: [ord(letter) for letter in text]):
        return Pi0Processor(CONVENTIONS, Preprocessing(max_tokens=60, **preprocessing), SHAPE, None)  # type: ignore[arg-type]


def inputs_with(state_BS: Tensor) -> PolicyInputs:
    return PolicyInputs(torch.zeros(1, 1, 3, 1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), state_BS)


def test_a_gripper_of_0_and_1_opens_above_one_half() -> None:
    """RLinf's `prepare_actions_for_maniskill`: numbers between are none of the fingers'."""
    rlinf = processor(binarize_gripper=True)
    x_BHD = torch.tensor([0.5, 0.51, 0.0, 1.7])[None, :, None].expand(1, 4, 32) * torch.ones(32)
    action_BKA = rlinf.to_env(x_BHD, inputs_with(torch.zeros(1, 32)))
    assert action_BKA[0, :, 1].tolist() == [-1.0, 1.0, -1.0, 1.0]
    torch.testing.assert_close(action_BKA[0, :, 0], torch.tensor([0.5, 0.51, 0.0, 1.0]))
    back_BKA = rlinf.from_env(torch.tensor([[[0.2, -1.0], [0.2, 1.0]]]), inputs_with(torch.zeros(1, 32)))
    torch.testing.assert_close(back_BKA, torch.tensor([[[0.2, 0.0], [0.2, 1.0]]]))


def test_actions_go_back_to_the_robots_units() -> None:
    x_BHD = torch.zeros(1, 10, 32)
    x_BHD[0, 0, :2] = torch.tensor([1.0, -1.0])
    action = processor(action=ACTION).to_env(x_BHD, inputs_with(torch.zeros(1, 32)))
    assert action.shape == (1, 4, 2)
    torch.testing.assert_close(action[0, :2], torch.tensor([[0.6, -0.45], [0.1, -0.2]]))
    action = processor(action=ACTION, normalization="quantiles").to_env(x_BHD, inputs_with(torch.zeros(1, 32)))
    torch.testing.assert_close(action[0, :2], torch.tensor([[0.5, 0.0], [0.0, 0.25]]))


def test_relative_actions_have_the_state_added() -> None:
    relative = processor(state=STATE, action=ACTION, delta_dims=1)
    # Normalised state -0.25 of dim 0 is 1 - 0.25 * 2 = 0.5; the action 0.1 is relative to it.
    inputs = inputs_with(torch.tensor([[-0.25, 0.0, 0.0] + [0.0] * 29]))
    action = relative.to_env(torch.zeros(1, 10, 32), inputs)
    torch.testing.assert_close(action[0, 0], torch.tensor([0.6, -0.2]))


def test_the_state_stands_in_pi05s_text(obs: dict[str, Tensor]) -> None:
    obs["state"] = torch.tensor([[0.0, -1.0, 1.0]] * 3)
    exact, padded = (processor(prompt_state="exact").prepare(obs), processor(prompt_state="padded").prepare(obs))
    text = "".join(chr(token) for token in exact.text_BL[2].tolist() if token > 2)
    assert text == "Task: open, State: 128 0 255;\nAction: "
    text = "".join(chr(token) for token in padded.text_BL[2].tolist() if token > 2)
    assert text.startswith("Task: open, State: 128 0 255 128 128 128")


def test_pictures_of_another_size_are_resized_as_the_makers_do(obs: dict[str, Tensor]) -> None:
    image = obs["image"] = torch.randint(0, 256, (3, 80, 80, 3), dtype=torch.uint8)
    pil = processor(resize="pil").prepare(obs).pixels_BMCHW[0, 0]
    expected = np.asarray(Image.fromarray(image[0].numpy()).resize((56, 56), Image.Resampling.BILINEAR))
    assert torch.equal(pil, torch.from_numpy(expected.copy()).permute(2, 0, 1).float() / 255.0 * 2.0 - 1.0)
    plain = processor(resize="torch").prepare(obs).pixels_BMCHW[0, 0]
    assert plain.shape == (3, 56, 56)
    assert (plain - pil).abs().max() > 0.05


def test_padding_is_black_and_the_odd_pixel_comes_last() -> None:
    image = torch.full((1, 3, 3, 6), 200, dtype=torch.uint8)
    got = resize_pil(image.permute(0, 2, 3, 1), 6)[0, :, :, 0]
    assert got.tolist() == [[0] * 6, *([[200] * 6] * 3), [0] * 6, [0] * 6]
    got = resize_with_pad(torch.ones(1, 3, 3, 6), 6)[0, 0]
    assert got.tolist() == [[-1.0] * 6, *([[1.0] * 6] * 3), [-1.0] * 6, [-1.0] * 6]


def test_pi0_text_is_cleaned() -> None:
    assert pi0_text("  pick_up the\nbowl ") == "pick up the bowl"


def test_state_bins_by_hand() -> None:
    # 256 bins of width 1/128 from -1: -1 opens bin 0, 0 opens bin 128, what lies below is -1, above stays 255.
    values = np.array([-1.5, -1.0, -1.0 + 1 / 128, 0.0, 0.999, 1.0, 7.0])
    assert state_bins(values).tolist() == [-1, 0, 1, 128, 255, 255, 255]


def test_a_folders_own_tokenizer_is_used(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"open": 7, "it": 8, "?": 9}, unk_token="?"))  # noqa: S106 - a token of text
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert paligemma_encoder(tmp_path)("open it") == [7, 8]


def test_a_missing_tokenizer_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BadValue, match=r"has no tokenizer\.json.*google/paligemma-3b-pt-224") as caught:
        paligemma_encoder(tmp_path)
    assert "\n" not in str(caught.value)
