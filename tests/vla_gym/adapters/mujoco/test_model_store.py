"""Models on disk: read back whole, and not there when a file is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco", reason="needs the libero extra")
from vla_gym.adapters.mujoco import model_store  # noqa: E402

pytestmark = pytest.mark.sim

SCENE = """<mujoco>
  <asset>
    <texture name="a" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="128" height="128"/>
    <material name="a" texture="a"/>
  </asset>
  <worldbody><geom type="box" size=".4 .4 .1" material="a"/></worldbody>
</mujoco>"""


def test_a_piece_cut_short_is_not_there(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    model_store.save(model, tmp_path / "scene", tmp_path / "pieces")
    loaded = model_store.load(tmp_path / "scene", tmp_path / "pieces")
    np.testing.assert_array_equal(loaded.tex_data, model.tex_data)
    _, files = model_store.load_unpainted(tmp_path / "scene", tmp_path / "pieces")
    files[0].write_bytes(files[0].read_bytes()[:-1])
    for load in (model_store.load, model_store.load_unpainted):
        with pytest.raises(FileNotFoundError, match="cut short"):
            load(tmp_path / "scene", tmp_path / "pieces")


@pytest.mark.parametrize("name", ["model.json", "model.rest", "piece"])
@pytest.mark.parametrize("keep", [None, 0, 9])
def test_a_damaged_file_is_not_there_until_the_model_is_saved_again(
    name: str, keep: int | None, tmp_path: Path
) -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    scene, pieces = tmp_path / "scene", tmp_path / "pieces"
    model_store.save(model, scene, pieces)
    _, files = model_store.load_unpainted(scene, pieces)
    file = files[0] if name == "piece" else scene / name
    whole = file.read_bytes()
    file.unlink()
    if keep is not None:
        file.write_bytes(whole[:keep])
    for load in (model_store.load, model_store.load_unpainted):
        with pytest.raises(FileNotFoundError, match=str(file)):
            load(scene, pieces)
    model_store.save(model, scene, pieces)
    assert file.read_bytes() == whole
    np.testing.assert_array_equal(model_store.load(scene, pieces).tex_data, model.tex_data)


@pytest.mark.parametrize("name", ["model.json", "model.rest", "piece"])
@pytest.mark.parametrize("damage", ["zeros", "one bit"])
def test_bytes_that_are_not_what_was_written_are_not_taken(name: str, damage: str, tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    scene, pieces = tmp_path / "scene", tmp_path / "pieces"
    model_store.save(model, scene, pieces)
    _, files = model_store.load_unpainted(scene, pieces)
    file = files[0] if name == "piece" else scene / name
    whole = file.read_bytes()
    half = len(whole) // 2
    flipped = whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]
    file.write_bytes(bytes(len(whole)) if damage == "zeros" else flipped)
    with pytest.raises(FileNotFoundError, match=str(file)):
        model_store.load(scene, pieces)
    model_store.save(model, scene, pieces)
    assert file.read_bytes() == whole
    np.testing.assert_array_equal(model_store.load(scene, pieces).tex_data, model.tex_data)


def test_models_of_version_0_1_are_read_without_hashes(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    model_store.save(model, tmp_path, tmp_path / "pieces")
    layout = json.loads((tmp_path / "model.json").read_text().partition("\n")[0])
    del layout["rest"]
    (tmp_path / "model.json").write_text(json.dumps(layout))
    np.testing.assert_array_equal(model_store.load(tmp_path, tmp_path / "pieces").tex_data, model.tex_data)


def image(model: mujoco.MjModel) -> bytes:
    data = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, data)
    return data.tobytes()


TEXTURES = """<mujoco>
  <asset>
    <texture name="a" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="128" height="128"/>
    <texture name="b" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="128" height="128"/>
    <texture name="c" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="128" height="128"/>
    <texture name="d" type="2d" builtin="flat" rgb1="0 0 0" width="128" height="128"/>
    <texture name="e" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="256" height="256"/>
    <material name="a" texture="a"/> <material name="b" texture="b"/> <material name="c" texture="c"/>
  </asset>
</mujoco>"""


def test_a_model_is_read_back_byte_for_byte(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(TEXTURES)
    model_store.save(model, tmp_path / "scene", tmp_path / "pieces")
    assert image(model_store.load(tmp_path / "scene", tmp_path / "pieces")) == image(model)
    _, files = model_store.load_unpainted(tmp_path / "scene", tmp_path / "pieces")
    assert sorted(files) == [0, 1, 2, 4]  # the black one is not filed
    assert files[0] == files[2] != files[1]


def test_equal_models_have_one_digest(tmp_path: Path) -> None:
    def digest(name: str, xml: str) -> str:
        model_store.save(mujoco.MjModel.from_xml_string(xml), tmp_path / name, tmp_path / "pieces")
        return model_store.digest(tmp_path / name)

    scene = digest("scene", SCENE)
    assert digest("again", SCENE) == scene
    assert digest("moved", SCENE.replace("size", 'pos="0 0 1" size')) != scene
    assert digest("painted", SCENE.replace("1 0 0", "1 1 0")) != scene
    layout = json.loads((tmp_path / "scene" / "model.json").read_bytes().rpartition(b"\n#")[0])
    del layout["rest"]
    for name in ("scene", "again"):
        (tmp_path / name / "model.json").write_text(json.dumps(layout))  # version 0.1, which may have another rest
    assert model_store.digest(tmp_path / "scene") != model_store.digest(tmp_path / "again")


def test_materials_share_the_first_of_equal_textures(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(TEXTURES)
    model_store.share_textures(model)
    assert model.mat_texid[:, mujoco.mjtTextureRole.mjTEXROLE_RGB].tolist() == [0, 1, 0]
    assert model.tex_width.tolist() == [128, 128, 1, 128, 256]


def test_an_array_that_begins_like_another_is_found_where_all_of_it_is() -> None:
    array = np.arange(3 * model_store.MIN_BLOB, dtype=np.uint8)
    other = array.copy()
    other[-1] ^= 1
    data = bytearray(b"before" + other.tobytes() + array.tobytes())
    assert model_store._find(array, data, 0) == 6 + array.size
    assert model_store._find(other, data, 0) == 6
    assert model_store._find(other, data, 7) == -1
