from __future__ import annotations

import numpy as np

from vla_gym.adapters.plate25 import layouts


def test_the_grid_is_six_by_six_x_first() -> None:
    points = layouts.grid_points()
    assert points.shape == (36, 2)
    # Centre (-0.16, 0), half a side 0.075: from -0.235 to -0.085 in x, -0.075 to 0.075 in y, steps of 0.03.
    by_hand = [[-0.235, -0.075], [-0.235, -0.045], [-0.205, -0.075], [-0.085, 0.075]]
    np.testing.assert_allclose(points[[0, 1, 6, 35]], by_hand, atol=1e-12)


def test_the_ring_lies_one_step_outside() -> None:
    points = layouts.ring_points()
    assert points.shape == (28, 2)
    np.testing.assert_allclose(points[[0, 27]], [[-0.265, -0.105], [-0.055, 0.105]], atol=1e-12)
    assert np.all(np.isclose(np.abs(points - layouts.CENTRE).max(axis=1), 0.105))


def test_pairs_are_more_than_seven_centimetres_apart() -> None:
    # Of 36 * 36 pairs those at most sqrt(5) steps apart are too near. By steps in x and y: (0,0) 36; (1,0) and (0,1)
    # 60 each; (1,1) 100; (2,0) and (0,2) 48 each; (2,1) and (1,2) 80 each: 512, which leaves 784.
    for pairs, points, count in (
        (layouts.trained_pairs(), layouts.grid_points(), 784),
        (layouts.ring_pairs(), layouts.ring_points(), 628),
    ):
        assert pairs.shape == (count, 2)
        gaps = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
        assert gaps.min() > 0.07
        assert len({tuple(pair) for pair in pairs.tolist()}) == count
        assert pairs.tolist() == sorted(pairs.tolist())


def test_nothing_far_enough_is_left_out() -> None:
    points = layouts.grid_points()
    gaps = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert int((gaps > 0.07).sum()) == len(layouts.trained_pairs())


def test_triples_and_their_frozen_edge() -> None:
    points = layouts.grid_points()
    for triples, far in ((layouts.object_triples(), (0, 2)), (layouts.plate_triples(), (1, 2))):
        assert triples.shape == (2104, 3)
        gaps = np.linalg.norm(points[triples[:, far[0]]] - points[triples[:, far[1]]], axis=1)
        exact = np.isclose(gaps, 0.15, atol=1e-9)
        # 1896 triples are farther apart whatever the rounding; 208 are exactly 0.15 m apart and published as farther.
        assert (int((~exact).sum()), int(exact.sum())) == (1896, 208)
        assert gaps.min() > 0.15 - 1e-9


def test_edge_pairs_are_five_steps_apart() -> None:
    assert len(layouts.EDGE_PAIRS) == 10
    for a, b in layouts.EDGE_PAIRS:
        assert a < b
        assert (a // 6 - b // 6) ** 2 + (a % 6 - b % 6) ** 2 == 25


def test_arm_poses() -> None:
    poses = layouts.arm_poses()
    # 5^6 combinations; of the 25 of joints 2 and 3, two lean too far (twice 0.15): 23 * 5^4 = 14375, and row 0.
    assert poses.shape == (14_376, 8)
    assert not poses[0].any()
    assert not poses[:, 6:].any()
    np.testing.assert_allclose(poses[1], [-0.15, -0.15, -0.08, -0.15, -0.15, -0.6, 0, 0])
    assert np.abs(poses[:, 1] + poses[:, 2]).max() < 0.24


def test_yaws() -> None:
    np.testing.assert_allclose(np.rad2deg(layouts.YAWS), [0, 45, 90, 135])
    np.testing.assert_allclose(np.rad2deg(layouts.UNSEEN_YAWS), [-22.5, -67.5, -112.5, -157.5])
    half = np.sqrt(0.5)
    np.testing.assert_allclose(layouts.yaw_quaternion(np.pi / 2), [half, 0, 0, half])
