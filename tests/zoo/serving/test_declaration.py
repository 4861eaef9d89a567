"""The declaration of a served policy: its JSON, and the checks of observations and environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from zoo.serving.declaration import Declaration
from zoo.serving.openpi import OpenpiServerSession

from .conftest import observation

NAMES = OpenpiServerSession.NAMES


def test_an_observation_is_taken_as_it_is(declaration: Declaration) -> None:
    given = observation(declaration)
    checked = declaration.check_observation({**given, "state": given["state"].astype(np.float64), "other": 1}, NAMES)
    assert set(checked) == {"image", "state", "instruction"}
    assert checked["image"] is given["image"]
    assert checked["state"].dtype == np.float32
    assert np.array_equal(checked["state"], given["state"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image", None),
        ("image", np.zeros((9, 8, 3), np.uint8)),
        ("image", np.zeros((8, 8, 3), np.float32)),
        ("state", np.zeros(3, np.float32)),
        ("state", np.zeros(2, np.int64)),
        ("state", np.array([0.0, np.inf])),
        ("state", np.array([0.0, -1e300])),
        ("instruction", None),
        ("instruction", ""),
        ("instruction", "na\u00efve"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(declaration: Declaration, key: str, value: Any) -> None:
    with pytest.raises(BadValue, match="instruction|prompt" if key == "instruction" else NAMES[key]):
        declaration.check_observation({**observation(declaration), key: value}, NAMES)


def test_other_square_sizes_only_where_declared(declaration: Declaration) -> None:
    larger = {**observation(declaration), "image": np.zeros((20, 20, 3), np.uint8)}
    resizing = replace(declaration, any_image_size=True)
    assert resizing.check_observation(larger, NAMES)["image"].shape == (20, 20, 3)
    assert resizing.message_bytes() > declaration.message_bytes()
    for shape in ((20, 21, 3), (4, 4, 3), (20, 20, 4)):
        with pytest.raises(BadValue, match="a square image"):
            resizing.check_observation({**larger, "image": np.zeros(shape, np.uint8)}, NAMES)


def test_an_environment_that_does_not_fit_is_refused(declaration: Declaration) -> None:
    toy = find_benchmark("Toy-Reach")
    options = declaration.options()
    assert options == {"chunk": 3, "image_size": 8, "wrist_camera": False}
    declaration.check_environment(toy, options)
    cases = [
        (replace(declaration, action_dim=7), options, "action_dim=7"),
        (replace(declaration, state_dim=5), options, "state_dim=5"),
        (declaration, {**options, "state": False}, "state_dim=2"),
        (declaration, {**options, "chunk": 8}, "chunk=3, the environment has chunk=8"),
        (declaration, {**options, "image_size": 64}, "image_size=8, the environment has image_size=64"),
        (replace(declaration, cameras=("image", "wrist_image")), options, "gives no wrist_image"),
        (replace(declaration, action_spec=None), options, "does not say how the actions"),
        (replace(declaration, action_spec=replace(toy.action_spec, frame="absolute")), options, "frame: environment"),
    ]
    for wrong, given, said in cases:
        with pytest.raises(BadValue, match=said):
            wrong.check_environment(toy, given)
    libero = find_benchmark("Toy-Reach")
    laid_out = replace(libero, protocol={"state": "x, then y"})
    replace(declaration, state="x, then y").check_environment(laid_out, options)
    with pytest.raises(BadValue, match="state is 'y, then x', that of Toy-Reach is 'x, then y'"):
        replace(declaration, state="y, then x").check_environment(laid_out, options)


def test_numbers_that_cannot_be(declaration: Declaration) -> None:
    for change, said in (
        ({"chunk": 0}, "chunk"),
        ({"image_size": 4}, "image_size in 8"),
        ({"cameras": ("left",)}, "cameras must be"),
        ({"horizon": 2}, "horizon"),
    ):
        with pytest.raises(BadValue, match=said):
            replace(declaration, **change)
    assert replace(declaration, horizon=10).answer_length == 10
