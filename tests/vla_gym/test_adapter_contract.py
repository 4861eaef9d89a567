"""Every benchmark, through the contract's own test, in worker processes as users run it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from vla_gym import find_benchmark
from vla_gym.checks import check_vla_env
from vla_gym.registry import FAMILIES

ONE_OF_EACH: dict[str, tuple[str, dict[str, Any]]] = {
    "vla_gym.adapters.toy:toy_benchmark": ("Toy-Reach", {"num_workers": 2}),
    "vla_gym.adapters.libero.tasks:libero_benchmark": ("LIBERO-Goal/1", {"wrist_camera": True, "image_size": 64}),
    "vla_gym.adapters.libero.tasks:libero_pro_benchmark": (
        "LIBERO-Goal-PRO-task/0",
        {"image_size": 64, "instruction": "bddl", "to_the_end": False},  # the simulator is LIBERO's
    ),
    "vla_gym.adapters.libero.plus_tasks:libero_plus_benchmark": (
        "LIBERO-Goal-Plus-noise/26",  # fog, which is drawn anew for each image
        {"image_size": 64},
    ),
    "vla_gym.adapters.maniskill.tasks:maniskill_benchmark": ("ManiSkill/PickCube", {"image_size": 64}),
    "vla_gym.adapters.metaworld.tasks:metaworld_benchmark": (
        "MetaWorld/reach",
        {"image_size": 64, "privileged": True, "num_workers": 1, "to_the_end": False},
    ),
    "vla_gym.adapters.plate25.tasks:plate25_benchmark": (
        "ManiSkill-Plate25-MultiPlateTest",
        {"image_size": 64, "action_units": "scaled"},
    ),
}
"""Family's builder -> (id, options of `make_vec`)."""
QUICK = ("vla_gym.adapters.toy:toy_benchmark", "vla_gym.adapters.metaworld.tasks:metaworld_benchmark")


def test_no_family_is_left_out() -> None:
    assert {family.build for family in FAMILIES} == set(ONE_OF_EACH)


@pytest.mark.sim
@pytest.mark.parametrize(
    "build", [pytest.param(build, marks=() if build in QUICK else pytest.mark.thorough) for build in ONE_OF_EACH]
)
def test_contract(build: str) -> None:
    env_id, options = ONE_OF_EACH[build]
    missing = [name for name in find_benchmark(env_id).requires if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    check_vla_env(env_id, **options)
