import json
from dataclasses import Field, fields, replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
from gymnasium import spaces

from vla_gym.errors import BadValue
from vla_gym.specs import ActionSpec
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.conventions import Conventions, check_compatible, check_fits, conventions_of

ARM = ActionSpec(rotation="axis_angle", gripper="plus_one_closes", frame="delta")


@pytest.mark.parametrize("field", fields(ActionSpec), ids=lambda field: field.name)
def test_another_way_to_write_actions_is_named_with_both(field: Field) -> None:
    check_compatible(ARM, ARM)
    ours, choices = getattr(ARM, field.name), get_args(get_type_hints(ActionSpec)[field.name])
    assert len(choices) > 1
    for other in set(choices) - {ours}:
        with pytest.raises(BadValue, match=f"{field.name}: environment '{ours}', policy '{other}'"):
            check_compatible(ARM, replace(ARM, **{field.name: other}))


def test_spaces_and_back(conventions: Conventions) -> None:
    assert conventions_of(conventions.observation_space(), conventions.action_space()) == conventions


@pytest.mark.parametrize("spec", [None, ARM])
def test_json_and_back(conventions: Conventions, spec: ActionSpec | None) -> None:
    specified = replace(conventions, action_spec=spec)
    assert from_json(Conventions, json.loads(json.dumps(to_json(specified))), "here") == specified


@pytest.mark.parametrize(
    "change",
    [
        *({"image_size": 0}, {"chunk": 0}, {"action_dim": 0}, {"state_dim": -1}),
        *({"cameras": ("front",)}, {"cameras": ()}, {"cameras": ("image", "image")}),
    ],
)
def test_impossible_conventions_raise(conventions: Conventions, change: dict) -> None:
    with pytest.raises(BadValue, match=next(iter(change))):
        replace(conventions, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cameras": ("image",)}, r"policy looks at \['image', 'wrist_image'\], the environment gives \['image'\]"),
        ({"state_dim": 5}, "made for state_dim=3, the environment has state_dim=5"),
        ({"chunk": 8}, "made for chunk=2, the environment has chunk=8"),
        ({"action_dim": 7}, "made for action_dim=4, the environment has action_dim=7"),
    ],
)
def test_an_environment_that_lacks_something_raises(conventions: Conventions, change: dict, message: str) -> None:
    env = replace(conventions, **change)
    with pytest.raises(BadValue, match=message):
        check_fits(conventions, conventions_of(env.observation_space(), env.action_space()))


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.Box(-2, 2, (2, 4)), spaces.Box(-1, 1, (1, 2, 4)), spaces.Box(0, 1, (4,))]
)
def test_other_action_spaces_raise(conventions: Conventions, space: spaces.Space) -> None:
    with pytest.raises(BadValue, match=r"\[-1, 1\]"):
        conventions_of(conventions.observation_space(), space)


def test_one_action_is_a_chunk_of_one(conventions: Conventions) -> None:
    found = conventions_of(conventions.observation_space(), spaces.Box(-1, 1, (7,)))
    assert (found.chunk, found.action_dim) == (1, 7)


def test_observations_of_another_kind_raise(conventions: Conventions) -> None:
    with pytest.raises(BadValue, match="needs a Dict observation"):
        conventions_of(spaces.Box(0, 1, (3,)), conventions.action_space())
    parts = dict(conventions.observation_space().spaces)
    del parts["instruction"]
    with pytest.raises(BadValue, match="'instruction'"):
        conventions_of(spaces.Dict(parts), conventions.action_space())
    parts = dict(conventions.observation_space().spaces) | {"image": spaces.Box(0, 255, (32, 16, 3), np.uint8)}
    with pytest.raises(BadValue, match="square RGB"):
        conventions_of(spaces.Dict(parts), conventions.action_space())
