"""The start states that a loaded task keeps, and the scene that it shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="needs the libero extra")
import mujoco

from vla_gym.adapters.libero import simulator
from vla_gym.adapters.libero.compile import CompiledTask, StoredModel
from vla_gym.adapters.libero.osc import ArmIndex
from vla_gym.adapters.libero.simulator import LoadedTask
from vla_gym.adapters.libero.upstream import Lamp
from vla_gym.adapters.mujoco.model_store import TaskCache

pytestmark = pytest.mark.sim


STOVE = Lamp(site=0, qpos=0, threshold=0.5)
ARM = ArmIndex(site=0, hand_body=0, qpos=(), qvel=(), actuators=(), gripper_qpos=(), gripper_actuators=())
XML = """<mujoco><worldbody><site name="burner" rgba="1 0 0 0.25"/><body pos="0 0 1"/></worldbody></mujoco>"""


def compiled(task: str, digest: str) -> CompiledTask:
    model = StoredModel(digest, (STOVE,), Path(task))
    return CompiledTask(model=model, reset_state=np.zeros(1), home=np.zeros(7), arm=ARM, goal=(), key=task)


def test_tasks_with_one_model_share_it_until_the_last_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {
        "stove": compiled("stove", "kitchen"),
        "bowl": compiled("bowl", "kitchen"),
        "book": compiled("book", "study"),
    }
    read: list[str] = []

    def load(stored: StoredModel) -> tuple[mujoco.MjModel, dict[int, Path]]:
        read.append(stored.folder.name)
        return mujoco.MjModel.from_xml_string(XML), {}

    def compiled_task(suite: str, task: str, use: Callable[[CompiledTask], object]) -> object:
        return use(tasks[task])

    monkeypatch.setattr(StoredModel, "load", load)
    monkeypatch.setattr(simulator, "compiled_task", compiled_task)
    monkeypatch.setenv("VLA_ZOO_WORKER_GB", "0")  # keeps nothing that is not in use
    monkeypatch.setattr(simulator, "SCENES", TaskCache(simulator.LoadedScene))
    stove, book = (LoadedTask("libero_90", task, 64, ()) for task in ("stove", "book"))
    stove.scene.model.site_rgba[0, 3] = 1.0  # it glows
    bowl = LoadedTask("libero_90", "bowl", 64, ())
    assert bowl.scene is stove.scene is not book.scene
    assert bowl.scene.lamps == [(STOVE, 0.25)]
    assert bowl.model_key != stove.model_key
    assert LoadedTask("libero_90", "bowl", 128, ()).scene is not bowl.scene
    assert read == ["stove", "book", "bowl"]
    stove.close()
    LoadedTask("libero_90", "stove", 64, ()).close()  # the bowl's keeps the scene
    assert read == ["stove", "book", "bowl"]
    bowl.close()
    assert LoadedTask("libero_90", "stove", 64, ()).scene is not bowl.scene
    assert read[3:] == ["stove"]
