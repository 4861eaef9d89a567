from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from vla_gym import make_vec

pytestmark = pytest.mark.sim

SIZES = ("LIBERO-Spatial/3:64", "MetaWorld/reach:480", "LIBERO-Spatial/3:96", "MetaWorld/reach:64")
SEE = """
import hashlib, json, sys
import numpy as np
from vla_gym import make_vec

open_envs, seen = {}, {}
for name in sys.argv[1:]:
    env_id, size = name.split(":")
    envs = open_envs[name] = make_vec(env_id, num_workers=0, image_size=int(size), chunk=4)
    seen[name] = [envs.reset(options={"task_id": 0, "trial_id": 3})[0]["image"]]
for name, envs in open_envs.items():  # once more, with everything open
    seen[name].append(envs.step(np.zeros(envs.action_space.shape, np.float32))[0]["image"])
for envs in open_envs.values():
    envs.close()
digests = {n: [[hashlib.md5(image).hexdigest(), float(image.mean())] for image in both] for n, both in seen.items()}
sys.stdout.write(json.dumps(digests))
"""
"""Run in a process of its own: what slots of several benchmarks and sizes see that all live in it."""


def pictures(num_workers: int) -> list[np.ndarray]:
    """What two slots with different scenes see at the reset and after each of two decisions, `[N, H, W, 3]`."""
    starts = {"task_id": np.array([0, 26]), "trial_id": np.array([0, 0])}
    envs = make_vec("LIBERO-130", 2, chunk=2, image_size=64, num_workers=num_workers, autoreset_mode="disabled")
    try:
        seen = [envs.reset(options=starts)[0]["image"]]
        seen += [envs.step(np.zeros((2, 2, 7), dtype=np.float32))[0]["image"] for _ in range(2)]
    finally:
        envs.close()
    return seen


def test_slots_that_share_a_process_see_their_own_scenes() -> None:
    together, apart = pictures(num_workers=1), pictures(num_workers=2)
    for first, second in zip(together, apart, strict=True):
        np.testing.assert_array_equal(first, second)
    # The two scenes differ far more than a scene does from itself two steps later.
    assert np.abs(together[2][0].astype(int) - together[2][1]).mean() > 5
    assert np.abs(together[2].astype(int) - together[0]).mean() < 2


def digests_of_one_process(*names: str) -> dict[str, list[tuple[str, float]]]:
    done = subprocess.run([sys.executable, "-c", SEE, *names], env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    digests: dict[str, list[tuple[str, float]]] = json.loads(done.stdout)
    return digests


@pytest.mark.slow
def test_sizes_and_benchmarks_that_share_a_process_look_as_they_do_alone() -> None:
    digests = digests_of_one_process(*SIZES)
    # Whoever is drawn first draws as if it were alone.
    assert digests_of_one_process(*reversed(SIZES)) == digests
    for pictures in digests.values():
        assert all(80 < mean < 180 for _, mean in pictures), digests
    small, large = (digests[f"LIBERO-Spatial/3:{size}"][0][1] for size in (64, 96))
    assert abs(small - large) < 1  # the same view, 64 and 96 px wide
