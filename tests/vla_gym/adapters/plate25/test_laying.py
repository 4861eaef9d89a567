from __future__ import annotations

import numpy as np

from vla_gym.adapters.plate25.laying import Layout, lay_out
from vla_gym.adapters.plate25.protocols import PROTOCOLS
from vla_gym.adapters.plate25.runs import Episode
from vla_gym.adapters.plate25.suite import MAIN, RUNS


def positions(layout: Layout) -> list[tuple[str, int, list[float]]]:
    return [(one.kind, one.index, np.round(one.place.position, 6).tolist()) for one in layout.placed]


def test_the_training_set_by_hand() -> None:
    # Row 0 of the pairs: points 0 and the first more than sqrt(5) steps off, (0, 3) = point 3.
    layout = lay_out(MAIN["train"], Episode(object=2, table=0, position=0, yaw=2), PROTOCOLS["mended"])
    assert positions(layout) == [("carrot", 2, [-0.235, -0.075, 0.95]), ("plate", 0, [-0.235, 0.015, 0.95])]
    half = np.sqrt(0.5)
    np.testing.assert_allclose(layout.placed[0].place.rotation, [half, 0, 0, half], atol=1e-12)
    assert layout.placed[1].place.rotation == (1.0, 0.0, 0.0, 0.0)
    assert (layout.target, layout.plate, layout.moved_to) == (0, 1, None)


def test_rlinf_lets_go_lower() -> None:
    layout = lay_out(MAIN["train"], Episode(object=2, table=0, position=0, yaw=2), PROTOCOLS["rlinf"])
    assert [one.place.position[2] for one in layout.placed] == [0.90, 0.90]


def test_things_are_built_by_id_whatever_their_part() -> None:
    episode = Episode(object=20, table=0, position=0, yaw=0, second=6)  # (4 + 6 + 1) mod 9 + 16 = 18
    layout = lay_out(RUNS["MultiCarrotTest"], episode, PROTOCOLS["mended"])
    assert [(one.kind, one.index) for one in layout.placed] == [("carrot", 18), ("carrot", 20), ("plate", 0)]
    assert (layout.target, layout.plate) == (1, 2)
    assert [one.place.position[2] for one in layout.placed] == [1.0, 0.95, 0.92]


def test_the_published_slip_puts_the_target_where_the_distractor_would_be() -> None:
    episode = Episode(object=20, table=0, position=0, yaw=0, second=1)
    mended = lay_out(RUNS["MultiCarrotTest"], episode, PROTOCOLS["mended"])
    published = lay_out(RUNS["MultiCarrotTest"], episode, PROTOCOLS["rl4vla"])
    assert len(mended.placed) == 3
    assert [(one.kind, one.index) for one in published.placed] == [("carrot", 20), ("plate", 0)]
    assert published.placed[0].place == mended.placed[1].place


def test_second_plates_and_moves() -> None:
    episode = Episode(object=0, plate=5, table=0, position=0, yaw=0, second=0)
    layout = lay_out(RUNS["MultiPlateTest"], episode, PROTOCOLS["mended"])
    assert [(one.kind, one.index) for one in layout.placed] == [("carrot", 0), ("plate", 5), ("plate", 6)]
    assert [one.place.position[2] for one in layout.placed] == [1.0, 0.92, 0.96]
    moved = lay_out(
        RUNS["PositionChangeTo"], Episode(object=0, table=0, position=9, yaw=1), PROTOCOLS["mended"]
    ).moved_to
    assert moved is not None
    assert moved.position[2] == 1.0
