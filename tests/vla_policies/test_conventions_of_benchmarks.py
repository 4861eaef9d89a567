"""Each benchmark's way to write actions, against each family's: a mismatch raises with both sides shown."""

from __future__ import annotations

import importlib.util
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from vla_gym import find_benchmark
from vla_gym.errors import BadValue, MissingDependency
from vla_gym.registry import FAMILIES
from vla_gym.specs import ActionSpec
from vla_policies import VLAPolicy
from vla_policies.conventions import check_compatible

CHOICES = {name: get_args(hint) for name, hint in get_type_hints(ActionSpec).items()}


def spec_of(env_id: str) -> ActionSpec:
    try:
        return find_benchmark(env_id).action_spec
    except MissingDependency as error:
        pytest.skip(str(error))


def others(spec: ActionSpec) -> list[tuple[str, ActionSpec]]:
    """Every spec that differs in one field, with the field's name."""
    return [
        (name, replace(spec, **{name: choice}))
        for name, choices in CHOICES.items()
        for choice in choices
        if choice != getattr(spec, name)
    ]


@pytest.mark.parametrize("env_id", [next(iter(family.num_tasks)) for family in FAMILIES])
def test_every_difference_from_a_benchmark_is_named(env_id: str) -> None:
    spec = spec_of(env_id)
    check_compatible(spec, spec)
    assert {name for name, _ in others(spec)} == {item.name for item in fields(ActionSpec)}
    for name, other in others(spec):
        both = f"{name}: environment '{getattr(spec, name)}', policy '{getattr(other, name)}'"
        with pytest.raises(BadValue, match=both):
            check_compatible(spec, other)


@pytest.mark.skipif(importlib.util.find_spec("libero") is None, reason="LIBERO is not installed")
def test_published_openvla_turns_the_gripper_and_refuses_the_rest(golden_root: Path) -> None:
    folder, key = golden_root / "openvla_tiny", "libero_spatial"
    spec = spec_of("LIBERO-Spatial")
    for fits in (spec, replace(spec, gripper="plus_one_opens")):
        policy = VLAPolicy.from_pretrained(folder, unnorm_key=key, action_spec=fits, device="cpu")
        assert policy.conventions.action_spec == fits
    for unfit in (replace(spec, rotation="euler_xyz"), replace(spec, frame="absolute")):
        with pytest.raises(BadValue, match="not written as the environment reads them"):
            VLAPolicy.from_pretrained(folder, unnorm_key=key, action_spec=unfit, device="cpu")


def test_the_statistics_say_how_actions_are_written(golden_root: Path) -> None:
    folder = golden_root / "openvla_tiny"
    bridge, libero = spec_of("ManiSkill-Plate25"), spec_of("LIBERO-Spatial")
    policy = VLAPolicy.from_pretrained(folder, unnorm_key="bridge_orig", action_spec=bridge, device="cpu")
    assert policy.conventions.action_spec == bridge
    for field in ("rotation", "units", "image"):
        both = f"{field}: environment '{getattr(libero, field)}', policy '{getattr(bridge, field)}'"
        with pytest.raises(BadValue, match=both):
            VLAPolicy.from_pretrained(folder, unnorm_key="bridge_orig", action_spec=libero, device="cpu")
