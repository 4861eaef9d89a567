"""Changes to pictures, worked out by hand, and that they follow from the frame alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vla_policies.actions.noise import Noise, SlotNoise
from zoo.imitation.augmentation import Changes, augmented, changed, draw_changes, shifted


def changes(brightness: float = 0.0, contrast: float = 1.0, saturation: float = 1.0) -> Changes:
    return Changes(
        shift_B2=torch.tensor([[0, 0]]),
        brightness_B=torch.tensor([brightness]),
        contrast_B=torch.tensor([contrast]),
        saturation_B=torch.tensor([saturation]),
    )


def picture(*pixels: tuple[int, int, int]) -> Tensor:
    """One row of pixels, `[1, 1, W, 3]`."""
    return torch.tensor([[pixels]], dtype=torch.uint8)


class Constant(Noise):
    """The same number wherever one is asked for."""

    def __init__(self, number: float) -> None:
        self._number = number

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        return torch.full(shape, self._number, dtype=torch.float64, device=device)

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        raise AssertionError("changes are uniform")


def test_a_shift_repeats_the_edge() -> None:
    image_BHWC = torch.tensor([[1, 2], [3, 4]]).expand(3, 2, 2)[..., None]
    moved = shifted(image_BHWC, torch.tensor([[1, 0], [0, -1], [0, 0]]))
    assert moved[..., 0].tolist() == [[[1, 2], [1, 2]], [[2, 2], [4, 4]], [[1, 2], [3, 4]]]


def test_colours_by_hand() -> None:
    row = picture((100, 100, 100), (200, 200, 250))
    assert torch.equal(changed(row, changes()), row)
    # 250 + 10 is cut.
    assert torch.equal(changed(row, changes(brightness=10.0)), picture((110, 110, 110), (210, 210, 255)))
    # The mean colour is (150, 150, 175); half of the distance from it is left.
    assert torch.equal(changed(row, changes(contrast=0.5)), picture((125, 125, 138), (175, 175, 212)))
    # Without saturation a pixel is its grey: 0.299 x 100 = 29.9, and 0.587 x 100 = 58.7.
    plain = changed(picture((100, 0, 0), (0, 100, 0)), changes(saturation=0.0))
    assert torch.equal(plain, picture((30, 30, 30), (59, 59, 59)))


@pytest.mark.parametrize(
    ("number", "shift", "brightness", "factor"),
    [(0.0, [-4, -2], -51.0, 0.8), (0.5, [0, 0], 0.0, 1.0), (1.0 - 2**-53, [4, 2], 51.0, 1.2)],
)
def test_ranges(number: float, shift: list[int], brightness: float, factor: float) -> None:
    """4 pixels of 84, so 2 of 42; a fifth of 255; a fifth around 1."""
    drawn = draw_changes(Constant(number), torch.zeros(1, 84, 42, 3, dtype=torch.uint8))
    assert drawn.shift_B2.tolist() == [shift]
    assert drawn.brightness_B.item() == pytest.approx(brightness)
    assert drawn.contrast_B.item() == drawn.saturation_B.item() == pytest.approx(factor)


def test_what_happens_to_a_frame_depends_on_neither_its_company_nor_the_call() -> None:
    image = torch.randint(0, 256, (3, 42, 42, 3), dtype=torch.uint8)
    obs = {"image": image, "wrist_image": image, "state": torch.ones(3, 2)}
    whole = augmented(obs, ("image", "wrist_image"), SlotNoise(7, (5, 0), np.arange(3)))
    last = augmented(
        {key: value[2:] for key, value in obs.items()}, ("image", "wrist_image"), SlotNoise(7, (5, 0), np.array([2]))
    )
    for key, value in last.items():
        assert torch.equal(whole[key][2:], value)
    assert torch.equal(whole["state"], obs["state"])
    assert not torch.equal(whole["image"], whole["wrist_image"])
    next_update = augmented(obs, ("image",), SlotNoise(7, (6, 0), np.arange(3)))
    assert not torch.equal(whole["image"], next_update["image"])
    assert torch.equal(next_update["wrist_image"], image)
