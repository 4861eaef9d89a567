import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies.actions.codec import TableBins, UniformBins


def test_every_token_survives_float32_both_ways() -> None:
    codec = UniformBins()
    token = torch.arange(256)
    action = codec.decode(token)
    assert action.dtype == torch.float32
    assert torch.equal(codec.encode(action), token)
    # Through a NumPy buffer and a clip, as Stable-Baselines3 stores actions.
    stored = np.clip(action.numpy().astype(np.float32), -1.0, 1.0)
    assert torch.equal(codec.encode(torch.from_numpy(stored)), token)
    assert torch.equal(codec.decode(codec.encode(action)), action)


@pytest.mark.parametrize(("token", "action"), [(0, -255 / 256), (127, -1 / 256), (128, 1 / 256), (255, 255 / 256)])
def test_centres_by_hand(token: int, action: float) -> None:
    assert UniformBins().decode(torch.tensor(token)).item() == action


@pytest.mark.parametrize(
    ("action", "token"),
    [(-1.0, 0), (-0.9922, 0), (-0.9921, 1), (0.0, 128), (1.0, 255), (7.0, 255), (-7.0, 0)],
)
def test_actions_between_centres_go_to_their_bin(action: float, token: int) -> None:
    # The first bin is [-1, -1 + 2/256) = [-1, -0.9921875).
    assert UniformBins().encode(torch.tensor(action)).item() == token


def test_other_ranges() -> None:
    codec = UniformBins(4, low=0.0, high=2.0)
    assert codec.centres().tolist() == [0.25, 0.75, 1.25, 1.75]
    assert torch.equal(codec.encode(codec.centres()), torch.arange(4))


@pytest.mark.parametrize(("bins", "low", "high"), [(1, -1.0, 1.0), (8, 1.0, 1.0), (8, 2.0, -2.0)])
def test_impossible_bins_raise(bins: int, low: float, high: float) -> None:
    with pytest.raises(BadValue, match="low < high"):
        UniformBins(bins, low, high)


def test_a_table_tells_twins_apart_and_finds_every_token_again() -> None:
    # Dim 0: an ordinary row with equal ends; dim 1: a gripper that knows two numbers; dim 2: never moves.
    ordinary = np.linspace(0.9, -0.9, 256)
    ordinary[1] = ordinary[0]
    value_AV = np.stack([ordinary, np.repeat([-1.0, 1.0], 128), np.zeros(256)])
    codec = TableBins(value_AV)
    token = torch.arange(256)[:, None].expand(256, 3)
    action = codec.decode(token)
    assert action.dtype == torch.float32
    assert torch.equal(codec.encode(action), token)
    stored = np.clip(action.numpy(), -1.0, 1.0)
    assert torch.equal(codec.encode(torch.from_numpy(stored)), token)
    assert np.abs(action.double().numpy() - value_AV.T).max() < 1e-5


def test_a_table_takes_the_nearest_of_other_numbers() -> None:
    codec = TableBins(np.array([[-1.0, 0.0, 1.0], [0.5, 0.25, 0.0]]))
    assert codec.encode(torch.tensor([[-0.6, 0.3], [0.4, 9.0]])).tolist() == [[0, 1], [1, 0]]


def test_of_twins_the_nearest_to_the_data_is_the_numbers_token() -> None:
    codec = TableBins(np.array([[-1.0, -1.0, -1.0, 1.0, 1.0]]), np.array([[2.0, 0.5, 1.0, 3.0, 3.0]]))
    assert codec.encode(torch.tensor([[-1.0], [1.0]])).tolist() == [[1], [3]]
    # float32 knows numbers 2^-24 apart below 1: none, two and one step towards zero; of equals the first stays.
    steps = torch.tensor([2.0, 0.0, 1.0, 0.0, 1.0]) * 2.0**-24
    token = torch.arange(5)[:, None]
    assert torch.equal(1.0 - codec.decode(token)[:, 0].abs(), steps)
    assert torch.equal(codec.encode(codec.decode(token)), token)


@pytest.mark.parametrize("value_AV", [np.zeros(4), np.full((1, 2), 1.5)])
def test_an_impossible_table_raises(value_AV: np.ndarray) -> None:
    with pytest.raises(ValueError, match="value_AV"):
        TableBins(value_AV)
