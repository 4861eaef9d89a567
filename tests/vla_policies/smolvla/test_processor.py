from __future__ import annotations

import torch

from vla_policies.smolvla.processor import resize_to_corner


def test_pictures_lie_in_the_lower_right_corner() -> None:
    image = torch.full((1, 3, 3, 6), 0.5)
    got = resize_to_corner(image, 6)[0, 0]
    assert got.tolist() == [*([[0.0] * 6] * 3), *([[0.5] * 6] * 3)]
    got = resize_to_corner(image.transpose(2, 3), 6)[0, 0]
    assert got.tolist() == [[0.0] * 3 + [0.5] * 3] * 6


def test_sizes_are_cut_not_rounded() -> None:
    # 64 / 80 of 48 rows are 38.4, of 49 rows 39.2 and of 50 rows 40.
    for height, rows in ((48, 38), (49, 39), (50, 40)):
        got = resize_to_corner(torch.ones(1, 1, height, 80), 64)[0, 0]
        assert int(got[:, 0].sum()) == rows
