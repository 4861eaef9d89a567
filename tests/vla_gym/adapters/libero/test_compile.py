"""A task's folder: its start regions, and its repair; compiling is held to upstream in `test_identity`."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from vla_gym.errors import BadValue

pytest.importorskip("mujoco")
import mujoco

from vla_gym.adapters.libero import compile as libero_compile
from vla_gym.adapters.libero.osc import ArmIndex
from vla_gym.adapters.libero.tasks import libero_benchmark
from vla_gym.adapters.mujoco import model_store
from vla_gym.system.paths import read_json, write_json

XML = """<mujoco>
  <asset>
    <texture name="a" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="128" height="128"/>
  </asset>
</mujoco>"""
INDICES = ("qpos", "qvel", "actuators", "gripper_qpos", "gripper_actuators")
ARM = {"site": 0, "hand_body": 0, **{key: [] for key in INDICES}}
RECORD = {"reset_state": [0.0], "home": [], "arm": ARM, "goal": [], "lamps": []}


def textures(compiled: libero_compile.CompiledTask) -> dict[int, Path]:
    return compiled.model.load()[1]


def refuse(domain: object) -> None:
    raise NotImplementedError("LIBERO's odd sampler of cup_1 has no counterpart here")


def test_a_sampler_without_counterpart_leaves_the_published_start_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / libero_compile.SCENE).write_text("{}")
    monkeypatch.setattr(libero_compile, "bddl_file", lambda suite, task: tmp_path / "task.bddl")
    monkeypatch.setattr(libero_compile, "make_domain", lambda bddl: None)
    monkeypatch.setattr(libero_compile, "read_start_regions", refuse)
    libero_compile.compile_to("libero_90", "cup", folder)
    assert "odd sampler" in read_json(folder / libero_compile.REGIONS)["refused"]
    monkeypatch.setattr(libero_compile, "_folder_with", lambda file, suite, task: folder)
    with pytest.raises(BadValue, match=r"odd sampler of cup_1 .* libero_90/cup .*sampled_starts: 0"):
        libero_compile.start_regions("libero_90", "cup")


def test_a_kill_while_a_scene_is_written_leaves_nothing_once_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimpleNamespace()
    sim.model = SimpleNamespace(_model=mujoco.MjModel.from_xml_string(XML))
    sim.data = SimpleNamespace(_data=mujoco.MjData(sim.model._model))
    domain = SimpleNamespace(sim=sim, robots=[SimpleNamespace(controller=SimpleNamespace(initial_joint=[]))])
    for read in ("read_goal", "read_lamps"):
        monkeypatch.setattr(libero_compile, read, lambda domain: [])
    monkeypatch.setattr(libero_compile, "read_arm", lambda domain: ArmIndex(**ARM))
    folder = tmp_path / "task"
    pid = os.fork()
    if not pid:
        monkeypatch.setattr(libero_compile, "write_json", lambda file, values: os._exit(9))
        libero_compile._write_scene(domain, "libero_90", "cup", folder)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    libero_compile._write_scene(domain, "libero_90", "cup", folder)
    assert {entry.name for entry in tmp_path.iterdir()} == {"task", "pieces"}


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks compiled so far, in order; the compiler is a stand-in that does what `compile_to` does to a folder."""
    done: list[str] = []

    def compile_task(purpose: str, module: str, suite: str, task: str, path: str, **_: object) -> None:
        folder = Path(path)
        done.append(task)
        if not (folder / libero_compile.SCENE).is_file():
            model_store.save(mujoco.MjModel.from_xml_string(XML), folder, tmp_path / "libero" / "pieces")
            write_json(folder / libero_compile.SCENE, RECORD)
        write_json(folder / libero_compile.REGIONS, {"refused": "no regions"})

    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(libero_compile, "task_key", lambda suite, task: task)
    monkeypatch.setattr(libero_compile, "run_child", compile_task)
    return done


@pytest.mark.parametrize("name", [libero_compile.SCENE, "model.json", "model.rest", "texture"])
@pytest.mark.parametrize("keep", [None, 9])
def test_a_damaged_task_is_compiled_anew_once(name: str, keep: int | None, compiled: list[str], tmp_path: Path) -> None:
    before = libero_compile.compiled_task("libero_90", "cup", textures)
    file = before[0] if name == "texture" else tmp_path / "libero" / "cup" / name
    whole = file.read_bytes()
    file.unlink()
    if keep is not None:
        file.write_bytes(whole[:keep])
    for _ in range(2):
        assert libero_compile.compiled_task("libero_90", "cup", textures) == before
        assert file.read_bytes() == whole
        assert compiled == ["cup", "cup"]


@pytest.mark.sim
@pytest.mark.thorough
def test_tasks_share_as_many_models_as_the_memory_plan_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path))  # of one compiler, for those of others are other models
    benchmark = libero_benchmark("LIBERO-Goal")
    models = {libero_compile.compiled_task(task.suite, task.name, lambda one: one.model) for task in benchmark.tasks}
    assert len(models) == benchmark.num_models == 1
