"""What several LIBERO slots of one process share, and what they must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_gym import find_benchmark, make_vec
from vla_gym.workers.process_pool import worker_environment

pytestmark = pytest.mark.sim
PROBE = Path(__file__).with_name("libero_probe.py")


def probe(*words: str) -> Any:
    environment = worker_environment(find_benchmark("LIBERO-Spatial"), os.environ, worker=0, num_workers=1)
    done = subprocess.run([sys.executable, str(PROBE), *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_protocol_begins_where_it_settles_not_where_another_did() -> None:
    oft, rlinf, libero, again = probe("protocols", "openvla-oft", "rlinf", "libero", "openvla-oft")
    # 10, 15 and 5 policy steps of 0.05 s, from a published state at time 0.
    assert [start["time"] for start in (oft, rlinf, libero)] == pytest.approx([0.5, 0.75, 0.25])
    # OpenVLA-OFT opens the gripper while things settle (0.0387), the others hold it as it was (0.0208).
    assert [start["finger"] for start in (oft, rlinf, libero)] == pytest.approx([0.0387, 0.0208, 0.0208], abs=1e-3)
    assert len({start["start_state"] for start in (oft, rlinf, libero)}) == 3
    assert oft["wrist_image"] != rlinf["wrist_image"]
    assert again == oft


def test_a_group_of_eight_begins_in_one_state_fixtures_included() -> None:
    group = probe("group", "8")
    assert len(set(group["apart"]["qpos"])) == 8  # each slot had gone its own way
    for key in ("qpos", "qvel", "body_pos", "body_quat"):
        assert group["together"][key] == group["alone"][key] * 8, key
    for key in ("qpos", "qvel"):
        assert group["another trial"][key] != group["alone"][key]


def test_a_stove_glows_for_the_slot_that_turned_it_on_alone() -> None:
    before, during, after = probe("stove")
    assert before == after == 0
    assert during > 20  # 10 by the knob alone


@pytest.mark.parametrize(
    ("quality", "count"),
    [
        ("fast", "6"),
        pytest.param("fast", "130", marks=pytest.mark.thorough),
        pytest.param("full", "130", marks=pytest.mark.thorough),
    ],
)
def test_scenes_that_stay_in_memory_play_as_those_that_are_read_again(
    quality: str, count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = probe("scenes", quality, count)
    assert first == second
    monkeypatch.setenv("VLA_ZOO_WORKER_GB", "0")  # a scene is dropped when the next begins
    again, _ = probe("scenes", quality, "6")
    assert again == first[:6]


def test_fast_physics_begins_in_the_same_state_and_differs_by_rounding() -> None:
    exact, fast = probe("physics", "exact", "fast")
    assert exact["start_state"] == fast["start_state"]
    assert exact["qpos"] != fast["qpos"]
    np.testing.assert_allclose(fast["qpos"], exact["qpos"], rtol=0, atol=1e-12)


@pytest.mark.slow  # simplifies the meshes of a scene where they are not cached
def test_fast_pictures_show_the_same_play_but_not_the_same_bytes() -> None:
    seen = {}
    for quality in ("full", "fast"):
        envs = make_vec(
            "LIBERO-Spatial/3", num_workers=1, image_size=64, wrist_camera=True, chunk=4, render_quality=quality
        )
        observations = [envs.reset(options={"task_id": 0, "trial_id": 3})[0]]
        observations.append(envs.step(np.full((1, 4, 7), 0.3, dtype=np.float32))[0])
        assert envs.protocol()["constants"]["render_quality"] == quality
        envs.close()
        seen[quality] = observations
    for full, fast in zip(seen["full"], seen["fast"], strict=True):
        np.testing.assert_array_equal(full["state"], fast["state"])
        for camera in ("image", "wrist_image"):
            error = ((full[camera].astype(float) - fast[camera]) ** 2).mean()
            assert 0 < error < 65, camera  # 30 dB
