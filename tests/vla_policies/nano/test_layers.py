import math

import pytest
import torch

from vla_policies.actions.sampling import UniformBins
from vla_policies.nano.layers import (
    ActionHead,
    ContrastVisionStem,
    DeepVisionStem,
    PrivilegedHead,
    VisionStem,
    bin_codes,
    spatial_softmax,
)


@pytest.mark.parametrize(("image_size", "grid"), [(16, 4), (32, 4), (32, 8), (64, 8), (96, 8), (224, 7), (256, 8)])
def test_every_image_size_arrives_at_the_grid(image_size: int, grid: int) -> None:
    stem = VisionStem(width=16, grid=grid, points=3, image_size=image_size)
    tokens, points = stem(torch.randn(2, 3, image_size, image_size), torch.randn(2, 16))
    assert tokens.shape == (2, grid * grid, 16)
    assert points.shape == (2, 6)


def test_points_of_a_deep_eye_come_from_the_finest_map(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = []

    def noted(score_BCHW: torch.Tensor) -> torch.Tensor:
        sides.append(score_BCHW.shape[2:])
        return spatial_softmax(score_BCHW)

    monkeypatch.setattr("vla_policies.nano.layers.spatial_softmax", noted)
    for kind in (VisionStem, DeepVisionStem):
        tokens, points = kind(width=16, grid=4, points=3, image_size=64)(torch.randn(2, 3, 64, 64), torch.randn(2, 16))
        assert tokens.shape == (2, 16, 16)
        assert points.shape == (2, 6)
    assert sides == [(8, 8), (16, 16)]


def test_an_eye_of_contrast_sees_a_dark_and_pale_picture_as_it_does_a_vivid_one() -> None:
    stem = ContrastVisionStem(width=16, grid=4, points=3, image_size=16)
    sentence_BD, pixels_BCHW = torch.randn(2, 16), torch.randn(2, 3, 16, 16)
    # Another contrast and brightness of each colour, and scores of another scale and level.
    pale_BCHW = 0.3 * pixels_BCHW + torch.tensor([-0.5, 0.1, 0.2])[:, None, None]
    vivid = stem(pixels_BCHW, sentence_BD)
    with torch.no_grad():
        stem.points.weight.mul_(10.0)
        stem.points.bias.add_(7.0)
    torch.testing.assert_close(stem(pale_BCHW, sentence_BD), vivid, atol=5e-3, rtol=0.0)


def test_what_the_expert_saw_is_told_in_standard_deviations() -> None:
    head = PrivilegedHead(width=8, dims=2)
    head.fit(torch.tensor([[1.0, 3.0], [3.0, 3.0]]))  # mean 2 and 3, deviations 1 and 0
    assert head(torch.randn(5, 8)).shape == (5, 2)
    # 2 deviations away, 1.5 beyond Huber's delta of 1 less a half; the number that never varies does not count.
    assert head.error(torch.tensor([[0.0, 7.0]]), torch.tensor([[4.0, 3.5]])).tolist() == [1.5]


def test_points_by_hand() -> None:
    score = torch.zeros(1, 3, 2, 4)
    score[0, 1, 1, 0] = 100.0  # lower left cell: x -0.75, y 0.5
    score[0, 2, 0, 3] = 100.0  # upper right cell: x 0.75, y -0.5
    points = spatial_softmax(score)
    assert points[0].tolist() == pytest.approx([0.0, -0.75, 0.75, 0.0, 0.5, -0.5], abs=1e-6)


def test_the_bins_share_what_they_learn_with_their_neighbours() -> None:
    centres = UniformBins().centres()
    codes = bin_codes(centres, features=48, smoothness=0.2)
    kernel = codes @ codes.T
    assert torch.allclose(kernel.diagonal(), torch.ones(256), atol=1e-5)
    # exp(-d^2 / (2 * 0.2^2)), less the constant mode that is left out: near 1 beside, falling with distance
    row = kernel[128]
    assert row[129] > 0.99
    assert row[128 + 26] == pytest.approx(math.exp(-0.5), abs=0.15)
    assert abs(row[255]) < 0.2


def test_first_actions_have_the_asked_spread() -> None:
    codec = UniformBins()
    head = ActionHead(32, 4, codec, features=16, smoothness=0.2, initial_std=0.3)
    probs = head(torch.randn(64, 2, 32)).softmax(-1)
    mean = (probs * codec.centres()).sum(-1)
    std = ((probs * codec.centres().square()).sum(-1) - mean.square()).sqrt()
    assert probs.shape == (64, 2, 4, 256)
    assert mean.abs().max() < 0.05
    assert std.mean().item() == pytest.approx(0.3, abs=0.01)
