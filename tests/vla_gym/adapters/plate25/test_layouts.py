from __future__ import annotations

import dataclasses

import numpy as np

from vla_gym.adapters.plate25 import layouts
from vla_gym.adapters.plate25.layouts import Layout, initial_layout
from vla_gym.adapters.plate25.runs import MAIN, RUNS, Episode
from vla_gym.adapters.plate25.tasks import PROTOCOLS


def test_the_grid_is_six_by_six_x_first() -> None:
    points, _ = layouts.positions("trained")
    assert points.shape == (36, 2)
    # Centre (-0.16, 0), half a side 0.075: from -0.235 to -0.085 in x, -0.075 to 0.075 in y, steps of 0.03.
    by_hand = [[-0.235, -0.075], [-0.235, -0.045], [-0.205, -0.075], [-0.085, 0.075]]
    np.testing.assert_allclose(points[[0, 1, 6, 35]], by_hand, atol=1e-12)


def test_pairs_are_more_than_seven_centimetres_apart() -> None:
    # Of 36 * 36 pairs those at most sqrt(5) steps apart are too near. By steps in x and y: (0,0) 36; (1,0) and (0,1)
    # 60 each; (1,1) 100; (2,0) and (0,2) 48 each; (2,1) and (1,2) 80 each: 512, which leaves 784.
    for spread, count in (("trained", 784), ("ring", 628)):
        points, pairs = layouts.positions(spread)
        assert pairs.shape == (count, 2)
        gaps = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
        assert gaps.min() > 0.07
        assert len({tuple(pair) for pair in pairs.tolist()}) == count
        assert pairs.tolist() == sorted(pairs.tolist())


def test_triples_and_their_frozen_edge() -> None:
    for spread, far in (("object_triples", (0, 2)), ("plate_triples", (1, 2))):
        points, triples = layouts.positions(spread)
        assert triples.shape == (2104, 3)
        gaps = np.linalg.norm(points[triples[:, far[0]]] - points[triples[:, far[1]]], axis=1)
        exact = np.isclose(gaps, 0.15, atol=1e-9)
        # 1896 triples are farther apart whatever the rounding; 208 are exactly 0.15 m apart and published as farther.
        assert (int((~exact).sum()), int(exact.sum())) == (1896, 208)
        assert gaps.min() > 0.15 - 1e-9


def test_arm_poses() -> None:
    poses = layouts.arm_poses()
    # 5^6 combinations; of the 25 of joints 2 and 3, two lean too far (twice 0.15): 23 * 5^4 = 14375, and row 0.
    assert poses.shape == (14_376, 8)
    assert not poses[0].any()
    assert not poses[:, 6:].any()
    np.testing.assert_allclose(poses[1], [-0.15, -0.15, -0.08, -0.15, -0.15, -0.6, 0, 0])
    assert np.abs(poses[:, 1] + poses[:, 2]).max() < 0.24


def placed(layout: Layout) -> list[tuple[str, int, list[float]]]:
    return [(thing.kind, thing.index, np.round(thing.place.position, 6).tolist()) for thing in layout.placed]


def test_the_training_set_by_hand() -> None:
    # Row 0 of the pairs: points 0 and the first more than sqrt(5) steps off, (0, 3) = point 3.
    layout = initial_layout(MAIN["train"], Episode(object=2, table=0, position=0, yaw=2), PROTOCOLS["mended"])
    assert placed(layout) == [("carrot", 2, [-0.235, -0.075, 0.95]), ("plate", 0, [-0.235, 0.015, 0.95])]
    half = np.sqrt(0.5)
    np.testing.assert_allclose(layout.placed[0].place.rotation, [half, 0, 0, half], atol=1e-12)
    assert layout.placed[1].place.rotation == (1.0, 0.0, 0.0, 0.0)
    assert (layout.target, layout.plate, layout.moved_to) == (0, 1, None)


def test_second_plates_and_moves() -> None:
    rules = PROTOCOLS["mended"]
    episode = Episode(object=0, plate=5, table=0, position=0, yaw=0, second=0)
    layout = initial_layout(RUNS["MultiPlateTest"], episode, rules)
    assert [(thing.kind, thing.index) for thing in layout.placed] == [("carrot", 0), ("plate", 5), ("plate", 6)]
    assert [thing.place.position[2] for thing in layout.placed] == [1.0, 0.92, 0.96]
    turned = dataclasses.replace(episode, yaw=1)
    flat = (1.0, 0.0, 0.0, 0.0)
    rotations = [thing.place.rotation for thing in initial_layout(RUNS["MultiPlateTest"], turned, rules).placed]
    assert rotations[0] != flat
    assert rotations[1:] == [flat, flat]  # the yaw is the object's alone
    moves = Episode(object=0, table=0, position=9, yaw=1)
    moved = initial_layout(RUNS["PositionChangeTo"], moves, rules).moved_to
    assert moved is not None
    assert moved.position[2] == 1.0
