"""A test stands opposite its module: `zoo/runs/folder.py` and `tests/zoo/runs/test_folder.py`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rooms import MODULES, ROOT, SOURCES

TESTED_IN: dict[str, tuple[str, ...]] = {
    # A task as upstream builds and steps it, state by state: controller, scene and simulator together.
    "vla_gym/adapters/libero/test_identity.py": ("vla_gym/adapters/libero/upstream.py",),
    "vla_gym/adapters/maniskill/test_simulator.py": (
        "vla_gym/adapters/maniskill/control.py",
        "vla_gym/adapters/maniskill/scene.py",
    ),
    "vla_gym/adapters/metaworld/test_identity.py": (
        "vla_gym/adapters/metaworld/simulator.py",
        "vla_gym/adapters/metaworld/task_env.py",
    ),
    "vla_gym/adapters/plate25/test_simulator.py": ("vla_gym/adapters/plate25/scene.py",),
    # Numbers of the original programs, stage by stage.
    "vla_policies/openvla/test_golden.py": (
        "vla_policies/openvla/network.py",
        "vla_policies/openvla/policy.py",
        "vla_policies/openvla/processor.py",
        "vla_policies/openvla/vision.py",
    ),
    "vla_policies/smolvla/test_network.py": ("vla_policies/smolvla/layers.py",),
    "vla_policies/openvla/test_rl.py": ("vla_policies/openvla/family.py", "vla_policies/openvla/fresh.py"),
    "vla_policies/test_policy.py": ("vla_policies/backbone.py", "vla_policies/token_backbone.py"),
    "vla_policies/test_loading.py": ("vla_policies/checkpoint_folder.py",),
    # Described once, driven where it runs.
    "vla_gym/test_gymnasium_envs.py": ("vla_gym/adapters/gymnasium_env.py",),
    # Two ends of one format: what is written is read.
    "zoo/demonstrations/test_lerobot.py": (
        "zoo/demonstrations/lerobot_format.py",
        "zoo/demonstrations/lerobot_reader.py",
        "zoo/demonstrations/lerobot_video.py",
        "zoo/demonstrations/lerobot_writer.py",
    ),
    # Commands, run from their flags to the files they leave.
    "zoo/test_train.py": ("zoo/evaluate.py", "zoo/record_video.py"),
    "zoo/test_demonstration_commands.py": ("zoo/collect.py", "zoo/sft.py"),
    "zoo/cli/test_arguments.py": ("zoo/cli/shared_flags.py",),
    "zoo/hub/test_upload.py": ("zoo/load_from_hub.py", "zoo/push_to_hub.py"),
    "zoo/runs/test_report_page.py": ("zoo/report.py",),
    # A run from start to end, stopped and gone on.
    "zoo/training/test_checkpoint.py": (
        "zoo/training/rl_trainer.py",
        "zoo/training/setup.py",
        "zoo/training/train.py",
        "zoo/training/trainer.py",
    ),
    "zoo/training/test_remote_rollouts.py": ("zoo/training/rollout_worker.py",),
    "zoo/distributed/test_fsdp.py": ("zoo/training/optimizer_file.py",),
}
"""Test file -> modules without a test of their own that it tests: together they do what one alone cannot show."""


def without_code(source: str) -> bool:
    """Whether a module holds records, constants and interfaces alone: no function of it does anything."""

    def idle(statement: ast.stmt) -> bool:
        constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        return constant or isinstance(statement, ast.Pass | ast.Raise)

    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return all(idle(statement) for function in functions for statement in function.body)


def twin(module: Path) -> Path:
    """Return the test file that stands opposite a module."""
    return ROOT / "tests" / module.relative_to(ROOT).with_name(f"test_{module.name}")


LONELY = {
    str(path.relative_to(ROOT))
    for name, path in MODULES.items()
    if not path.name.startswith("__") and not twin(path).is_file() and not without_code(SOURCES[name])
}


def test_every_module_has_its_test() -> None:
    assert {module for modules in TESTED_IN.values() for module in modules} == LONELY


@pytest.mark.parametrize("test", TESTED_IN)
def test_the_tests_of_the_table_exist(test: str) -> None:
    assert (ROOT / "tests" / test).is_file()


def test_records_need_no_test() -> None:
    assert without_code('LEAST = 3\nclass A:\n    x: int\n    def f(self) -> int:\n        """Return x."""\n')
    assert not without_code("def f() -> int:\n    return 3\n")
