"""Who may import whom: one table, checked against every file, and shown to be able to fail."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("vla_gym", "vla_policies", "zoo")
SIMULATORS = ("libero", "robosuite", "mujoco", "metaworld", "mani_skill", "sapien")

ALLOWED_OURS = {
    "vla_gym": {"vla_gym"},
    "vla_policies": {
        "vla_policies",
        "vla_gym.specs",
        "vla_gym.rotations",
        "vla_gym.errors",
        "vla_gym.observation",
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
    "vla_gym.adapters.mujoco.gl_textures": {"mujoco"},
    "vla_gym.adapters.libero.simulator": {"mujoco"},
    "vla_gym.adapters.libero.compile": {"mujoco", "libero", "robosuite"},
    "vla_gym.adapters.libero.goals": {"mujoco"},
    "vla_gym.adapters.libero.task_cache": {"mujoco", "libero", "robosuite"},
    "vla_gym.adapters.libero.samplers": {"mujoco"},
    "vla_gym.adapters.maniskill.simulator": {"mani_skill", "sapien", "torch"},
    "vla_gym.adapters.maniskill.batch": {"mani_skill", "sapien", "torch"},
    "vla_gym.adapters.maniskill.control": {"mani_skill", "sapien", "torch"},
    "vla_gym.adapters.maniskill.scene": {"mani_skill", "sapien"},
    "vla_gym.adapters.maniskill.start_states": {"mani_skill", "sapien", "torch"},
    "vla_gym.adapters.metaworld.simulator": {"mujoco"},
    "vla_gym.adapters.metaworld.task_env": {"metaworld", "mujoco"},
    "vla_gym.adapters.mujoco.model_store": {"mujoco"},
    "vla_gym.adapters.mujoco.camera": {"mujoco"},
    "vla_gym.adapters.libero.osc": {"mujoco", "robosuite"},
    "vla_gym.adapters.plate25.arm": {"sapien"},
    "vla_gym.adapters.plate25.scene": {"sapien"},
    "vla_gym.adapters.plate25.simulator": {"sapien"},
}
"""Modules that only a function (or another module of this table) imports -> what they may then import."""


def imports(source: str, *, module_level: bool) -> set[str]:
    """Dotted names that `source` imports: `a.b` for `import a.b` and for `from a import b`.

    With `module_level`, only what runs on import: function bodies and `if TYPE_CHECKING` are left out.
    """
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        if module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if module_level and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return names


def within(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def wrong_arrows(package: str, source: str) -> set[str]:
    ours = {name for name in imports(source, module_level=False) if name.split(".")[0] in OURS}
    return {name for name in ours if not within(name, ALLOWED_OURS[package])}


def heavy_imports(package: str, source: str) -> set[str]:
    tops = {name.split(".")[0] for name in imports(source, module_level=True)}
    return tops & BANNED_AT_MODULE_LEVEL[package]


def too_early(package: str, source: str) -> set[str]:
    """Modules of `LATE` imported at module level by a package that may not load what they load."""
    names = imports(source, module_level=True)
    barred = {late for late, loads in LATE.items() if loads & BANNED_AT_MODULE_LEVEL[package]}
    return {one for one in names if within(one, barred)}


FILES = [path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    name, source = module_name(path), path.read_text(encoding="utf-8")
    package = name.split(".", maxsplit=1)[0]
    assert not wrong_arrows(package, source)
    assert heavy_imports(package, source) <= LATE.get(name, set())
    if name not in LATE:
        assert not too_early(package, source)


def test_the_guard_can_fail() -> None:
    assert wrong_arrows("vla_gym", "def f():\n    from zoo import PPO") == {"zoo.PPO"}
    assert wrong_arrows("vla_policies", "from vla_gym.make import make_vec") == {"vla_gym.make.make_vec"}
    assert not wrong_arrows("vla_policies", "from vla_gym import observation")
    assert too_early("vla_gym", "from vla_gym.vector.sb3 import SB3VecEnv") == {
        "vla_gym.vector.sb3.SB3VecEnv"
    }
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


@pytest.mark.parametrize(
    "statement",
    [
        "import vla_gym",
        "import vla_policies",
        "import zoo",
        "import zoo.cli.main, zoo.train, zoo.evaluate, zoo.record_video",
    ],
)
def test_importing_stays_light(statement: str) -> None:
    assert loaded_by(statement, "torch", "transformers", "stable_baselines3", *SIMULATORS) == set()


def test_using_a_policy_loads_no_simulator() -> None:
    assert loaded_by(
        "from vla_policies import VLAPolicy; from zoo import PPO, GRPO", *SIMULATORS, "torch"
    ) == {"torch"}
