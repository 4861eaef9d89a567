"""LIBERO's and ManiSkill's ways to write actions, against a published OpenVLA's."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from vla_gym import find_benchmark
from vla_gym.errors import BadValue, MissingDependency
from vla_gym.specs import ActionSpec
from vla_policies import VLAPolicy


def spec_of(env_id: str) -> ActionSpec:
    try:
        return find_benchmark(env_id).action_spec
    except MissingDependency as error:
        pytest.skip(str(error))


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
