from __future__ import annotations

import numpy as np
import pytest

from vla_gym.checks import as_bytes, fresh, has_episode, require


def test_a_promise_holds_everywhere_or_is_broken() -> None:
    require(np.array([True, True]), "both")
    with pytest.raises(AssertionError, match="promise broken: both"):
        require(np.array([True, False]), "both")


def test_fresh_arrays_share_no_memory() -> None:
    image = np.zeros((2, 3))
    old = {"image": image, "instruction": ("a", "b")}
    assert fresh(old, {"image": image.copy(), "instruction": ("a", "b")})
    assert not fresh(old, {"image": image[:1], "instruction": ("a", "b")})
    assert as_bytes(old) == as_bytes({"image": image.copy(), "instruction": ("a", "b")})


def test_infos_without_statistics_have_no_episode() -> None:
    assert has_episode({"_success": np.ones(2, dtype=np.bool_)}).tolist() == [False, False]
    assert has_episode({"_episode": np.array([True, False])}).tolist() == [True, False]
