"""Who may import whom: one table, checked against every file, and shown to be able to fail."""

from __future__ import annotations

import subprocess
import sys

import pytest
from import_graph import PACKAGES, imports
from rooms import COMMANDS, MODULES, ROOT, SOURCES

SIMULATORS = ("libero", "robosuite", "mujoco", "metaworld", "mani_skill", "sapien")

ALLOWED_OURS = {
    "vla_gym": {"vla_gym"},
    "vla_policies": {
        "vla_policies",
        "vla_gym.specs",
        "vla_gym.rotations",
        "vla_gym.errors",
        "vla_gym.observation",
        "vla_gym.__version__",
        "vla_gym.reading",
        "vla_gym.system.limits",
    },
    "zoo": {"vla_gym", "vla_policies", "zoo"},
}
"""Package -> prefixes of our own modules it may import, anywhere in a file."""

BANNED_AT_MODULE_LEVEL = {
    "vla_gym": {*SIMULATORS, "torch", "stable_baselines3", "transformers"},
    "vla_policies": set(SIMULATORS),
    "zoo": set(SIMULATORS),
}
"""Package -> packages that only a function may import."""

LATE = {
    "vla_gym.vector.sb3": {"stable_baselines3"},
    "vla_gym.adapters.mujoco.camera": {"mujoco"},
    "vla_gym.adapters.mujoco.model_store": {"mujoco"},
    "vla_gym.adapters.libero.simulator": {"mujoco"},
    "vla_gym.adapters.libero.plus_simulator": {"mujoco"},
    "vla_gym.adapters.libero.plus_upstream": {"mujoco"},
    "vla_gym.adapters.libero.compile": {"mujoco", "libero", "robosuite"},
    "vla_gym.adapters.libero.goals": {"mujoco"},
    "vla_gym.adapters.libero.upstream": {"mujoco", "libero", "robosuite"},
    "vla_gym.adapters.maniskill.simulator": {"mani_skill", "sapien", "torch"},
    "vla_gym.adapters.maniskill.batch": {"mani_skill", "sapien", "torch"},
    "vla_gym.adapters.metaworld.simulator": {"metaworld", "mujoco"},
    "vla_gym.adapters.mujoco.visibility": {"mujoco"},
    "vla_gym.adapters.mujoco.gl_meshes": {"mujoco"},
    "vla_gym.adapters.mujoco.simple_meshes": {"mujoco"},
    "vla_gym.adapters.libero.osc": {"mujoco", "robosuite"},
    "vla_gym.adapters.plate25.scene": {"sapien"},
    "vla_gym.adapters.plate25.simulator": {"sapien"},
}
"""Modules that only a function (or another module of this table) imports -> what they may then import."""


def imported(source: str, *when: str) -> set[str]:
    """Return the dotted names that a file's text imports, or of them those that it imports `when`."""
    return {found.name for found in imports(source) if not when or found.when in when}


def within(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def wrong_arrows(package: str, source: str) -> set[str]:
    names = {name for name in imported(source) if name.split(".")[0] in PACKAGES}
    return {name for name in names if not within(name, ALLOWED_OURS[package])}


def heavy_imports(package: str, source: str) -> set[str]:
    tops = {name.split(".")[0] for name in imported(source, "load")}
    return tops & BANNED_AT_MODULE_LEVEL[package]


def too_early(package: str, source: str) -> set[str]:
    """Modules of `LATE` imported at module level by a package that may not load what they load."""
    names = imported(source, "load")
    barred = {late for late, loads in LATE.items() if loads & BANNED_AT_MODULE_LEVEL[package]}
    return {name for name in names if within(name, barred)}


@pytest.mark.parametrize("name", MODULES)
def test_imports_follow_the_arrows(name: str) -> None:
    source, package = SOURCES[name], name.split(".", maxsplit=1)[0]
    assert not wrong_arrows(package, source)
    assert heavy_imports(package, source) <= LATE.get(name, set())
    if name not in LATE:
        assert not too_early(package, source)


def test_modules_of_the_table_exist() -> None:
    assert set(LATE) <= set(MODULES)


def test_the_guard_can_fail() -> None:
    assert wrong_arrows("vla_gym", "def f():\n    from zoo import PPO") == {"zoo.PPO"}
    assert wrong_arrows("vla_policies", "from vla_gym.make import make_vec") == {"vla_gym.make.make_vec"}
    assert not wrong_arrows("vla_policies", "from vla_gym import observation")
    assert too_early("vla_gym", "from vla_gym.vector.sb3 import SB3VecEnv") == {"vla_gym.vector.sb3.SB3VecEnv"}
    assert not too_early("zoo", "from vla_gym.vector.sb3 import SB3VecEnv")
    assert too_early("zoo", "from vla_gym.adapters.libero.osc import OscPose") == {
        "vla_gym.adapters.libero.osc.OscPose"
    }
    assert heavy_imports("vla_gym", "import torch.nn") == {"torch"}
    assert heavy_imports("vla_gym", "class A:\n    import mujoco") == {"mujoco"}
    assert not heavy_imports("vla_gym", "def f():\n    import torch")


def loaded_by(statement: str, *packages: str) -> set[str]:
    """Which of `packages` a fresh interpreter has loaded after `statement`."""
    code = f"import sys; {statement}; print(*[name for name in {packages!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = ("torch", "transformers", "stable_baselines3", "matplotlib", "pandas", *SIMULATORS)


def test_importing_stays_light() -> None:
    of_lerobot = "vla_gym.plugins.lerobot"  # which imports it
    folders = [name for name, path in MODULES.items() if path.name == "__init__.py" and name != of_lerobot]
    assert loaded_by(f"import {', '.join(folders)}", *HEAVY) == set()


def test_a_command_reads_its_flags_before_it_loads_torch() -> None:
    assert {"zoo.train", "zoo.evaluate", "zoo.sft"} <= COMMANDS
    assert loaded_by(f"import zoo.cli.main, {', '.join(COMMANDS)}", *HEAVY) == set()


def test_what_most_runs_do_without_is_not_loaded() -> None:
    """Seconds each: peft is for adapters, FSDP for a policy that is cut over ranks."""
    modules = "zoo.training.setup, zoo.training.sft, vla_policies.nano.model"
    assert loaded_by(f"import {modules}", "peft", "bitsandbytes", "torch.distributed.fsdp") == set()


def test_using_a_policy_loads_torch_and_no_simulator() -> None:
    assert loaded_by("from vla_policies import VLAPolicy; from zoo import PPO, GRPO", *SIMULATORS, "torch") == {"torch"}


def test_a_worker_with_its_slots_loads_neither_torch_nor_another_simulator() -> None:
    slots = "import vla_gym, vla_gym.workers.worker; vla_gym.make_vec('Toy-Reach', 2).reset()"
    assert loaded_by(slots, *HEAVY) == set()
