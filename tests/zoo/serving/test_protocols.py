"""What both protocols share: names of observations, and the check of an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vla_gym.errors import BadValue, ServerFailed, UnknownName
from zoo.serving.declaration import Declaration
from zoo.serving.protocols import check_chunk, renamed


def test_own_names_stand_above_the_protocols() -> None:
    assert renamed({"image": "a", "state": "b"}, {"image": "c"}) == {"image": "c", "state": "b"}
    with pytest.raises(UnknownName, match="observation key 'camera'"):
        renamed({}, {"camera": "c"})
    assert renamed({"image": "a", "wrist_image": "b"}, {"image": "b", "wrist_image": "a"})["image"] == "b"
    with pytest.raises(BadValue, match="'a' would be the name of image and of state"):
        renamed({"image": "a", "state": "b"}, {"state": "a"})


def test_a_chunk_is_cut_clipped_and_single_actions_are_chunks(declaration: Declaration) -> None:
    longer = replace(declaration, horizon=5)
    actions = np.linspace(-2, 2, 10).reshape(5, 2)
    chunk = check_chunk({"actions": actions}, longer)
    assert chunk.dtype == np.float32
    assert np.array_equal(chunk, np.clip(actions[:3], -1, 1).astype(np.float32))
    assert check_chunk({"actions": np.array([0.5, 0.25])}, replace(declaration, chunk=1)).tolist() == [[0.5, 0.25]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, r"must be floating point numbers \[3, 2\], got NoneType"),
        ({"actions": [[0.0, 0.0]]}, "got list"),
        ({"actions": np.zeros((3, 2), np.int64)}, "got int64"),
        ({"actions": np.zeros((4, 2), np.float32)}, r"must be \[3, 2\], got \[4, 2\]"),
        ({"actions": np.zeros(2, np.float32)}, r"must be \[3, 2\], got \[2\]"),
        ({"actions": np.full((3, 2), np.nan, np.float32)}, "not finite"),
    ],
)
def test_a_wrong_answer_is_named(declaration: Declaration, answer: dict[str, Any], said: str) -> None:
    with pytest.raises(ServerFailed, match=said):
        check_chunk(answer, declaration)
