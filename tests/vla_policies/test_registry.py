"""Families by name: ours, one's own, and those of installed distributions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vla_policies
from vla_gym.errors import BadValue
from vla_policies import registry
from vla_policies.nano.model import NanoBackbone


def test_public_names_are_what_they_say() -> None:
    for name in vla_policies.__all__:
        assert getattr(vla_policies, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'VLAPolicies'"):
        vla_policies.VLAPolicies  # noqa: B018


class MyBackbone(NanoBackbone):
    family = "my-vla"


def test_a_family_of_one_s_own_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))
    for _ in range(2):
        vla_policies.register_policy("my-vla", MyBackbone)
    assert registry.family_class("my-vla") is MyBackbone
    with pytest.raises(BadValue, match=r"policy family 'nano' is taken by vla_policies\.nano"):
        vla_policies.register_policy("nano", f"{__name__}:MyBackbone")
    with pytest.raises(BadValue, match=r"which its class has as `family`.*whose family is 'my-vla'"):
        vla_policies.register_policy("my-own", MyBackbone)


def test_installed_distributions_bring_families_and_benchmarks(tmp_path: Path) -> None:
    info = tmp_path / "my_robot-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-robot\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[vla_zoo.policies]\nmy-vla = my_robot_tasks:MyVLA\n\n"
        "[vla_zoo.benchmarks]\nmine = my_robot_tasks\nbroken = my_robot_tasks:nothing\n"
    )
    (tmp_path / "my_robot_tasks.py").write_text(
        "import vla_gym\n"
        "vla_gym.register_benchmark('vla_gym.adapters.toy:toy_benchmark', num_tasks={'My-Reach': 3})\n"
        "from vla_policies.nano.model import NanoBackbone\n"
        "class MyVLA(NanoBackbone):\n    family = 'my-vla'\n"
    )
    script = (
        "import vla_gym\nfrom vla_policies.registry import family_class\n"
        "print('My-Reach' in vla_gym.list_envs(), vla_gym.find_benchmark('my-reach/1').id)\n"
        "print(family_class('my-vla').family)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True My-Reach/1\nmy-vla\n", done.stderr
    assert "the benchmark plug-in 'my_robot_tasks:nothing' is left out: AttributeError" in done.stderr
