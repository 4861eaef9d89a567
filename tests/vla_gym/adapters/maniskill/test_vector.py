"""ManiSkill through `make_vec`, in worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import vla_gym

pytest.importorskip("mani_skill")
pytestmark = pytest.mark.sim

CHUNK = 4


@pytest.fixture(scope="module")
def envs() -> Iterator[vla_gym.VLAVectorEnv]:
    """One group of four slots, two in each of two workers."""
    made = vla_gym.make_vec(
        "ManiSkill/PokeCube",  # of the tasks whose resets in place are not exact upstream
        num_envs=4,
        group_size=4,
        chunk=CHUNK,
        image_size=48,
        num_workers=2,
        autoreset_mode="disabled",
        seed=1,
    )
    yield made
    made.close()


def same_for_all(actions_KA: np.ndarray) -> np.ndarray:
    return np.stack([actions_KA] * 4)


def test_a_partial_reset_leaves_the_others_untouched(envs: vla_gym.VLAVectorEnv) -> None:
    """Slots 0 and 3 begin anew half way; 1 and 2 end as if nothing had happened."""
    rng = np.random.default_rng(1)
    steps = [rng.uniform(-1, 1, (CHUNK, 7)).astype(np.float32) for _ in range(4)]
    envs.reset(seed=2)
    for step in steps:
        undisturbed, *_ = envs.step(same_for_all(step))
    envs.reset(seed=2)
    for step in steps[:2]:
        before, _, _, _, infos = envs.step(same_for_all(step))
    some = np.array([True, False, False, True])
    observation, begun = envs.reset(
        options={"reset_mask": some, "task_id": np.zeros(4, int), "trial_id": np.full(4, 7)}
    )
    np.testing.assert_array_equal(observation["image"][1:3], before["image"][1:3])
    assert (observation["state"][some] != before["state"][some]).any()
    assert begun["start_state"][0] == begun["start_state"][3] != infos["start_state"][0]
    for step in steps[2:]:
        observation, *_ = envs.step(same_for_all(step))
    for key in ("image", "state"):
        np.testing.assert_array_equal(observation[key][1:3], undisturbed[key][1:3])
        assert (observation[key][0] != undisturbed[key][0]).any()


def test_time_truncates_in_simulator_steps_and_a_chunk_stops_there(envs: vla_gym.VLAVectorEnv) -> None:
    envs.reset(seed=3)
    still = np.zeros((4, CHUNK, 7), dtype=np.float32)
    for _ in range(12):
        _, _, terminated, truncated, _ = envs.step(still)
        assert not (terminated | truncated).any()
    _, _, terminated, truncated, infos = envs.step(still)  # 12 * 4 = 48 of 50 steps are done
    assert truncated.all()
    assert not terminated.any()
    assert infos["executed"].tolist() == [2] * 4
    assert infos["episode"]["length"].tolist() == [50] * 4
    assert not infos["episode"]["success_once"].any()
