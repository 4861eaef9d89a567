from __future__ import annotations

import numpy as np
import pytest

from vla_gym import make_vec

pytestmark = pytest.mark.sim


def pictures(num_workers: int) -> list[np.ndarray]:
    """What two slots with different scenes see at the reset and after each of two decisions, `[N, H, W, 3]`."""
    cells = {"task_id": np.array([0, 26]), "trial_id": np.array([0, 0])}
    envs = make_vec(
        "LIBERO-130", 2, chunk=2, image_size=64, num_workers=num_workers, autoreset_mode="disabled"
    )
    try:
        seen = [envs.reset(options=cells)[0]["image"]]
        seen += [envs.step(np.zeros((2, 2, 7), dtype=np.float32))[0]["image"] for _ in range(2)]
    finally:
        envs.close()
    return seen


def test_slots_that_share_a_process_see_their_own_scenes() -> None:
    together, apart = pictures(num_workers=1), pictures(num_workers=2)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one, other)
    # The two scenes differ far more than a scene does from itself two steps later.
    assert np.abs(together[2][0].astype(int) - together[2][1]).mean() > 5
    assert np.abs(together[2].astype(int) - together[0]).mean() < 2
