"""What several LIBERO slots of one process share, and what they must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.vla_gym.adapters.libero import libero_probe

pytestmark = pytest.mark.sim
Probe = Callable[..., Any]


def test_a_protocol_begins_where_it_settles_not_where_another_did(probe: Probe) -> None:
    oft, rlinf, libero, again = probe(libero_probe.protocols, "openvla-oft", "rlinf", "libero", "openvla-oft")
    # 10, 15 and 5 policy steps of 0.05 s, from a published state at time 0.
    assert [start["time"] for start in (oft, rlinf, libero)] == pytest.approx([0.5, 0.75, 0.25])
    # OpenVLA-OFT opens the gripper while things settle (0.0387), the others hold it as it was (0.0208).
    assert [start["finger"] for start in (oft, rlinf, libero)] == pytest.approx([0.0387, 0.0208, 0.0208], abs=1e-3)
    assert len({start["start_state"] for start in (oft, rlinf, libero)}) == 3
    assert oft["wrist_image"] != rlinf["wrist_image"]
    assert again == oft


def test_a_group_of_eight_begins_in_one_state_fixtures_included(probe: Probe) -> None:
    group = probe(libero_probe.group, 8)
    assert len(set(group["apart"]["qpos"])) == 8  # each slot had gone its own way
    for key in ("qpos", "qvel", "body_pos", "body_quat"):
        assert group["together"][key] == group["alone"][key] * 8, key
    for key in ("qpos", "qvel"):
        assert group["another trial"][key] != group["alone"][key]


def test_a_stove_glows_for_the_slot_that_turned_it_on_alone(probe: Probe) -> None:
    before, during, after = probe(libero_probe.stove)
    assert before == after == 0
    assert during > 20  # 10 by the knob alone


EVERY = np.random.default_rng(0).permutation(130).tolist()


@pytest.mark.parametrize(
    ("quality", "tasks"),
    [
        ("fast", [3, 27, 20]),  # the latter two share a scene
        pytest.param("fast", EVERY, marks=pytest.mark.thorough),
        pytest.param("full", EVERY, marks=pytest.mark.thorough),
    ],
    ids=["fast", "fast-all", "full-all"],
)
def test_scenes_that_stay_in_memory_play_as_those_that_are_read_again(
    quality: str, tasks: list[int], probe: Probe
) -> None:
    first, second, again = probe(libero_probe.scenes, quality, tasks)
    assert first == second
    assert again == first[: len(again)]
    assert len(set(first)) == len(tasks)


def test_slots_that_share_a_process_see_their_own_scenes(probe: Probe) -> None:
    together, alone = probe(libero_probe.shared)
    for slot, other in zip(together, alone, strict=True):
        for image, expected in zip(slot, other, strict=True):
            np.testing.assert_array_equal(image, expected)
    # The two scenes differ far more than a scene does from itself two steps later.
    first, second, large = (np.array(slot).astype(int) for slot in together)
    assert np.abs(first[2] - second[2]).mean() > 5
    assert np.abs(first[2] - first[0]).mean() < 2
    assert abs(second.mean() - large.mean()) < 1  # the same view, 64 and 96 px wide


def test_fast_physics_begins_in_the_same_state_and_differs_by_rounding(probe: Probe) -> None:
    exact, fast = probe(libero_probe.physics, "exact", "fast")
    assert exact["start_state"] == fast["start_state"]
    assert exact["qpos"] != fast["qpos"]
    np.testing.assert_allclose(fast["qpos"], exact["qpos"], rtol=0, atol=1e-12)


def test_fast_pictures_show_the_same_play_but_not_the_same_bytes(probe: Probe) -> None:
    for full, fast in zip(*probe(libero_probe.pictures, "full", "fast"), strict=True):
        np.testing.assert_array_equal(full["state"], fast["state"])
        for camera in ("image", "wrist_image"):
            error = ((full[camera].astype(float) - fast[camera]) ** 2).mean()
            assert 0 < error < 65, camera  # 30 dB
