"""Models on disk: read back whole, and not there when a file is damaged; loaded tasks; MuJoCo's warnings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco", reason="needs the libero extra")
from vla_gym.adapters.mujoco import model_store  # noqa: E402
from vla_gym.adapters.mujoco.model_store import TaskCache, log_warnings  # noqa: E402

SCENE = """<mujoco>
  <asset>
    <texture name="a" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="128" height="128"/>
    <texture name="b" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="128" height="128"/>
    <texture name="c" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="128" height="128"/>
    <texture name="d" type="2d" builtin="flat" rgb1="0 0 0" width="128" height="128"/>
    <texture name="e" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="256" height="256"/>
    <material name="a" texture="a"/> <material name="b" texture="b"/> <material name="c" texture="c"/>
  </asset>
  <worldbody><body><freejoint/><geom type="box" size=".4 .4 .1" material="a"/></body></worldbody>
</mujoco>"""


def image(model: mujoco.MjModel) -> bytes:
    data = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, data)
    return data.tobytes()


def test_a_model_is_read_back_byte_for_byte(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    model_store.save(model, tmp_path / "scene", tmp_path / "pieces")
    again, files = model_store.load(tmp_path / "scene", tmp_path / "pieces")
    assert image(again) == image(model)
    assert sorted(files) == [0, 1, 2, 4]  # the black one is not filed
    assert files[0] == files[2] != files[1]


@pytest.mark.parametrize("name", ["model.json", "model.rest", "piece"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut short", "one bit"])
def test_a_damaged_file_is_not_there_until_the_model_is_saved_again(name: str, damage: str, tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    scene, pieces = tmp_path / "scene", tmp_path / "pieces"
    model_store.save(model, scene, pieces)
    _, files = model_store.load(scene, pieces)
    file = files[0] if name == "piece" else scene / name
    whole = file.read_bytes()
    half = len(whole) // 2
    flipped = whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]
    file.unlink()
    if damage != "gone":
        file.write_bytes({"empty": b"", "cut short": whole[:9], "one bit": flipped}[damage])
    with pytest.raises(FileNotFoundError, match=str(file)):
        model_store.load(scene, pieces)
    model_store.save(model, scene, pieces)
    assert file.read_bytes() == whole
    assert image(model_store.load(scene, pieces)[0]) == image(model)


def test_equal_models_have_one_digest(tmp_path: Path) -> None:
    def digest(name: str, xml: str) -> str:
        model_store.save(mujoco.MjModel.from_xml_string(xml), tmp_path / name, tmp_path / "pieces")
        return model_store.digest(tmp_path / name)

    scene = digest("scene", SCENE)
    assert digest("again", SCENE) == scene
    assert digest("moved", SCENE.replace("size", 'pos="0 0 1" size')) != scene
    assert digest("painted", SCENE.replace("1 0 0", "1 1 0")) != scene


def test_materials_share_the_first_of_equal_textures() -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    model_store.share_textures(model)
    assert model.mat_texid[:, mujoco.mjtTextureRole.mjTEXROLE_RGB].tolist() == [0, 1, 0]
    assert model.tex_width.tolist() == [128, 128, 1, 128, 256]


def test_an_unstable_simulation_is_logged_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    log_warnings()
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    data.qpos[0] = float("nan")
    mujoco.mj_step(model, data)
    assert "MuJoCo: Nan, Inf or huge value in QPOS" in caplog.text
    assert not list(tmp_path.iterdir())


events: list[str] = []


class Loaded:
    def __init__(self, name: str, size: int) -> None:
        self.name = f"{name} at {size}"
        if name == "broken":
            raise OSError("no such file")
        events.append(f"load {self.name}")

    def close(self) -> None:
        events.append(f"close {self.name}")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> TaskCache[Loaded]:
    """A process that may take 2 bytes and takes one for each task."""
    events.clear()
    loaded: TaskCache[Loaded] = TaskCache(Loaded)
    monkeypatch.setenv("VLA_ZOO_WORKER_GB", "2e-9")
    monkeypatch.setattr(model_store, "resident_memory", lambda: len(loaded._loaded))
    return loaded


def test_slots_of_one_task_share_it(cache: TaskCache[Loaded]) -> None:
    assert cache.acquire("reach", 64) is cache.acquire("reach", 64)
    assert cache.acquire("reach", 96) is not cache.acquire("reach", 64)
    assert events == ["load reach at 64", "load reach at 96"]


def test_tasks_stay_while_there_is_memory_and_then_the_least_recently_used_goes(cache: TaskCache[Loaded]) -> None:
    for name in ("a", "b"):
        cache.acquire(name, 1)
    cache.release("a", 1)  # at the limit
    assert events == ["load a at 1", "load b at 1", "close a at 1"]
    cache.release("b", 1)
    cache.acquire("b", 1)  # kept, so not loaded again
    cache.acquire("c", 1)
    cache.acquire("c", 1)
    cache.release("c", 1)
    cache.acquire("d", 1)  # b and c are in use
    cache.release("b", 1)
    assert events[3:] == ["load c at 1", "load d at 1", "close b at 1"]
