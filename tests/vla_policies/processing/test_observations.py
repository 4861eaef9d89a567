from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import MAX_INSTRUCTION_BYTES, encode_instruction
from vla_policies import Conventions
from vla_policies.processing.observations import batch_observation, decode_instructions, observation_keys

MakeObs = Callable[..., dict[str, np.ndarray]]


def test_a_batch_stays_and_one_gains_a_dimension(conventions: Conventions, make_obs: MakeObs) -> None:
    obs = make_obs(3)
    many, batched = batch_observation(obs, conventions)
    assert batched
    single, batched = batch_observation({key: value[1] for key, value in obs.items()}, conventions)
    assert not batched
    for key, value in obs.items():
        assert torch.equal(many[key], torch.from_numpy(value))
        assert torch.equal(single[key], many[key][1:2])


@pytest.mark.parametrize("kind", [tuple, list, np.array, lambda texts: np.array(texts, dtype=object)])
def test_instructions_as_text_equal_their_bytes(conventions: Conventions, make_obs: MakeObs, kind: Callable) -> None:
    obs = make_obs(2)
    texts = {**obs, "instruction": kind(["reach the red block", "put the bowl on the plate, please"])}
    assert torch.equal(batch_observation(texts, conventions)[0]["instruction"], torch.from_numpy(obs["instruction"]))


def test_keys_the_policy_does_not_read_are_left(conventions: Conventions, make_obs: MakeObs) -> None:
    narrow = replace(conventions, cameras=("image",), state_dim=0)
    assert set(batch_observation(make_obs(2), narrow)[0]) == {"image", "instruction"}


def test_a_missing_key_is_named(conventions: Conventions, make_obs: MakeObs) -> None:
    obs = make_obs(2)
    obs["wristimage"] = obs.pop("wrist_image")
    with pytest.raises(UnknownName, match=r"no observation key 'wrist_image'.*Did you mean 'wristimage'"):
        batch_observation(obs, conventions)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("state", np.zeros((2, 3, 1), np.float32), "'state' must have 1 dims"),
        ("state", np.zeros((2, 4), np.float32), "'state' must have 3 finite numbers"),
        ("state", np.zeros(3, np.float32), "not of one batch"),
        ("state", np.array([[0, 1, 2], [0, np.nan, 2]], np.float32), "'state' must have 3 finite numbers, got .*nan"),
        ("instruction", ["only one"], "not of one batch"),
        ("instruction", ["", "two"], "has 0 UTF-8 bytes"),
    ],
)
def test_parts_that_cannot_be_are_named(
    conventions: Conventions, make_obs: MakeObs, key: str, value: object, message: str
) -> None:
    with pytest.raises(BadValue, match=message):
        batch_observation({**make_obs(2), key: value}, conventions)


def test_instructions_come_back_from_their_bytes() -> None:
    sentences = ["reach the red block", "put the bowl on the plate, please"]
    bytes_BL = torch.from_numpy(np.stack([encode_instruction(sentence) for sentence in sentences]))
    assert decode_instructions(bytes_BL) == sentences
    with pytest.raises(BadValue, match="not UTF-8 text"):
        decode_instructions(torch.full((1, MAX_INSTRUCTION_BYTES), 255, dtype=torch.uint8))


def test_keys_tell_observations_apart() -> None:
    batch = {"image": torch.tensor([[1], [2], [1]], dtype=torch.uint8), "state": torch.tensor([[7.0], [7.0], [8.0]])}
    first, second, third = map(tuple, observation_keys(batch).tolist())
    assert len({first, second, third}) == 3
    assert observation_keys({name: x[:1] for name, x in batch.items()}).tolist() == [list(first)]
