"""LIBERO-Plus's tables, camera views, homes of the arm and image noise, beside the sources of LIBERO-Plus itself."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vla_gym import find_benchmark, list_envs
from vla_gym.adapters.libero import plus_tasks, sensor_noise
from vla_gym.adapters.libero.plus_tasks import ARCHIVE, AXES, NUM_TASKS, OF_ARCHIVE, PLACES, plus_folder, read_name
from vla_gym.errors import BadValue, MissingDependency, UnknownName
from vla_gym.observation import check_instruction

pytestmark = pytest.mark.sim  # reads installed packages' files; starts no simulator
BASES = tuple(NUM_TASKS)


def functions(file: Path, names: Iterable[str], **given: Any) -> ModuleType:
    """Functions of a source file, without what else it imports."""
    first, *others = file.read_text(encoding="utf-8").split("@register_problem\nclass")
    tree = ast.parse("@register_problem\nclass".join([first, *others[:1]]))
    wanted: list[ast.stmt] = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / file.name
        path.write_text(ast.unparse(ast.Module(wanted, [])), encoding="utf-8")
        spec = spec_from_file_location(file.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        vars(module).update(np=np, **given)
        spec.loader.exec_module(module)
    return module


def test_counts_are_the_published_ones() -> None:
    counted = {base: [0] * len(AXES) for base in BASES}
    for base in BASES:
        for change in plus_tasks._changes(plus_tasks.BASES[base]).values():
            counted[base][list(AXES).index(change.axis)] += 1
    assert {base: tuple(row) for base, row in counted.items()} == NUM_TASKS
    assert np.sum(list(counted.values()), axis=0).tolist() == [1599, 1550, 1537, 1601, 1142, 1076, 1525]
    assert sum(map(sum, counted.values())) == 10030
    assert {f"{base}-Plus-{axis}" for base in BASES for axis in AXES} <= set(list_envs())


def test_a_name_says_what_changes() -> None:
    change = read_name("KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it_view_24_15_100_2_352_initstate_0")
    assert change.axis == "camera"
    assert change.base == "KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it"
    assert change.view == (24, 15, 100, 2, 352)
    change = read_name("pick_up_the_black_bowl_from_table_center_and_place_it_on_the_plate_table_3")
    assert (change.axis, change.base[-30:]) == ("background", "nter_and_place_it_on_the_plate")
    change = read_name("put_the_bowl_on_the_stove_language_7_view_10_0_100_0_0_initstate_0")
    assert (change.axis, change.file) == ("language", "put_the_bowl_on_the_stove_language_7")
    change = read_name("put_the_bowl_on_the_stove_view_0_0_100_0_0_initstate_3_noise_41")
    assert (change.axis, change.initstate, change.noise) == ("noise", 3, 41)


@pytest.mark.parametrize("base", BASES)
def test_sentences_are_upstream_s_and_fit_the_observation(base: str) -> None:
    from libero.libero.envs.bddl_utils import get_problem_info

    folder = plus_folder() / "bddl_files" / plus_tasks.BASES[base]
    reworded = find_benchmark(f"{base}-Plus-language").tasks
    unchanged = {task.name: task.instruction for task in find_benchmark(base).tasks}
    for task in reworded[::20]:
        file = folder / f"{read_name(task.name).file}.bddl"
        assert task.instruction == get_problem_info(str(file))["language_instruction"]
    for task in reworded:
        check_instruction(task.instruction)
    assert len({task.instruction for task in reworded} - set(unchanged.values())) > 0.9 * len(reworded)
    for task in find_benchmark(f"{base}-Plus-camera").tasks:
        assert task.instruction == unchanged[read_name(task.name).base]
    named = find_benchmark(f"{base}-Plus-robot/0", instruction="name").tasks[0]
    assert re.search(r" view 0 0 100 0 0 initstate \d+$", named.instruction)


def test_held_out_changes_are_in_no_split_that_is_trained_on() -> None:
    names = [task.name for task in find_benchmark("LIBERO-Spatial-Plus-noise").tasks]
    splits = {
        split: [task.name for task in find_benchmark("LIBERO-Spatial-Plus-noise", held_out=4, split=split).tasks]
        for split in ("train", "validation", "test")
    }
    assert splits["test"] == splits["validation"] == names[::4]
    assert sorted(splits["train"] + splits["test"]) == sorted(names)
    assert find_benchmark("LIBERO-Spatial-Plus-noise", held_out=4, split="test").protocol["held_out"] == 4
    with pytest.raises(BadValue, match="held_out must be an integer >= 2"):
        find_benchmark("LIBERO-Spatial-Plus-noise", held_out=1)


def test_scenes_and_start_states_are_libero_s() -> None:
    import torch
    from libero.libero import get_libero_path

    from vla_gym.adapters.libero.compile import start_states

    for base in BASES:
        suite, names = plus_tasks.BASES[base], {task.name for task in find_benchmark(base).tasks}
        for axis in ("camera", "robot", "language", "noise"):
            assert {read_name(task.name).base for task in find_benchmark(f"{base}-Plus-{axis}").tasks} <= names
        for name in names:
            own = (plus_folder() / "bddl_files" / suite / f"{name}.bddl").read_bytes()
            assert own == (Path(get_libero_path("bddl_files")) / suite / f"{name}.bddl").read_bytes()
            rows = torch.load(plus_folder() / "init_files" / suite / f"{name}.pruned_init", weights_only=False)
            np.testing.assert_array_equal(rows[0], start_states(suite, name)[0])


def test_homes_are_those_of_upstream_s_500_robots() -> None:
    from vla_gym.adapters.libero.plus_simulator import homes

    for file in ("mounted_panda", "on_the_ground_panda"):
        text = (plus_folder() / "envs" / "robots" / f"{file}.py").read_text(encoding="utf-8")
        found = re.findall(r"class \w+Panda(\d+)\(\w+\):.*?np\.array\(\[(.*?)\]\)", text, re.DOTALL)
        numbers = {int(number): [float(angle) for angle in row.split(",")] for number, row in found}
        assert list(numbers) == list(range(1, 501))
        np.testing.assert_array_equal(homes(), list(numbers.values()))


@pytest.mark.parametrize(
    ("problem", "base"),
    [
        ("tabletop", "LIBERO-Spatial"),
        ("tabletop", "LIBERO-Goal"),
        ("floor", "LIBERO-Object"),
        ("kitchen_tabletop", "LIBERO-Long"),
        ("living_room_tabletop", "LIBERO-Long"),
        ("study_tabletop", "LIBERO-Long"),
    ],
)
def test_each_view_is_upstream_s(problem: str, base: str) -> None:
    import libero.libero.envs as libero_envs
    from scipy.spatial.transform import Rotation

    from vla_gym.adapters.libero.plus_simulator import camera_pose

    names = ("scale_distance_from_pivot", "rotate_around_y", "rotate_around_z", "_setup_camera")
    file = f"problems/libero_{problem}_manipulation.py"
    theirs = functions(plus_folder() / "envs" / file, names, Rotation=Rotation)
    unchanged = pose_of(functions(Path(libero_envs.__path__[0]) / file, names)._setup_camera)
    views = {read_name(task.name).view for task in find_benchmark(f"{base}-Plus-camera").tasks}
    assert len(views) > 100
    keys = ("horizon_view", "vertical_view", "scale_factor", "end_point_rot", "end_point_vertical")
    for view in ((0, 0, 100, 0, 0), *views):
        given = dict(zip(keys, (*view[:2], view[2] / 100, *view[3:]), strict=True))
        position, quat = pose_of(theirs._setup_camera, **given)
        got_position, got_quat = camera_pose(*unchanged, view)
        np.testing.assert_array_equal(got_position, position)
        np.testing.assert_allclose(got_quat, quat, rtol=0, atol=1e-15)


def pose_of(setup: Any, **view: Any) -> tuple[np.ndarray, np.ndarray]:
    """Position and unit quaternion that a `_setup_camera` gives the main camera."""
    poses: dict[str, dict[str, Any]] = {}
    arena = SimpleNamespace(set_camera=lambda camera_name, **pose: poses.update({camera_name: pose}))
    setup(SimpleNamespace(**view), arena)
    quat = np.array(poses["agentview"]["quat"])
    return np.array(poses["agentview"]["pos"]), quat / np.linalg.norm(quat)


def picture() -> np.ndarray:
    """U8 `[256, 256, 3]` with edges and a gradient."""
    down, right = np.mgrid[:256, :256]
    squares = (down // 32 + right // 32) % 2 * 120
    return np.stack([down, right, squares], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("kind", ["gaussian_blur", "zoom_blur", "fog", "glass_blur"])
def test_noise_is_upstream_s_bit_for_bit(kind: str) -> None:
    from PIL import Image
    from scipy.ndimage import gaussian_filter, zoom

    def gaussian(image: np.ndarray, sigma: float, channel_axis: int) -> np.ndarray:
        # What skimage.filters.gaussian does with these arguments.
        smooth: np.ndarray = gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4.0)
        return smooth

    vars(np).setdefault("float_", np.float64)  # of NumPy before 2
    file, names = plus_folder() / "envs" / "env_wrapper.py", (kind, "plasma_fractal", "clipped_zoom")
    theirs = functions(file, names, gaussian=gaussian, scizoom=zoom)
    first = {"gaussian_blur": 11, "zoom_blur": 21, "fog": 31, "glass_blur": 41}[kind]
    for severity in (1, 4, 7, 10):
        np.random.seed(5)
        expected = getattr(theirs, kind)(Image.fromarray(picture()), severity=severity).astype(np.uint8)
        got = sensor_noise.noisy(picture(), first + severity - 1, np.random.RandomState(5))
        np.testing.assert_array_equal(got, expected, err_msg=str(severity))


def test_motion_blur_is_imagemagick_s_bit_for_bit() -> None:
    # MagickMotionBlurImage of ImageMagick 6.9.11, of `picture` at the same angle.
    expected = {1: "4f93344a6696b2f6", 4: "3104f7efdf2c8f73", 7: "321ce218dea9e14f", 10: "ba864fdb9defa534"}
    for severity, name in expected.items():
        got = sensor_noise.noisy(picture(), severity, np.random.RandomState(5))
        assert hashlib.sha256(got.tobytes()).hexdigest()[:16] == name, severity


def test_noise_of_another_size_is_scaled() -> None:
    small = picture()[::4, ::4]
    assert sensor_noise.noisy(small, 20, np.random.RandomState(0)).shape == (64, 64, 3)
    large = small.repeat(4, axis=0).repeat(4, axis=1)
    expected = sensor_noise.noisy(large, 35, np.random.RandomState(0)).reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
    got = sensor_noise.noisy(small, 35, np.random.RandomState(0))
    assert np.abs(got - expected).max() <= 1


def test_axes_of_the_archive_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ARCHIVE, raising=False)
    for axis in OF_ARCHIVE:
        with pytest.raises(MissingDependency, match=rf"Goal-Plus-{axis} .*assets.zip.*{ARCHIVE} names: it is not set"):
            find_benchmark(f"LIBERO-Goal-Plus-{axis}")
    monkeypatch.setenv(ARCHIVE, str(tmp_path))
    with pytest.raises(MissingDependency, match=f"'{tmp_path}' has no assets/scenes"):
        find_benchmark("LIBERO-Goal-Plus-light")
    with pytest.raises(UnknownName, match="LIBERO-Goal-Plus-camera"):
        find_benchmark("LIBERO-Goal-Plus-camra")


@pytest.mark.parametrize("place", PLACES)
def test_tasks_of_the_archive_and_their_start_states(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from vla_gym.adapters.libero.compile import bddl_file, start_states

    (tmp_path / place / "assets" / "scenes").mkdir(parents=True)
    monkeypatch.setenv(ARCHIVE, str(tmp_path))
    for base in BASES:
        suite = plus_tasks.BASES[base]
        for axis in OF_ARCHIVE:
            tasks = find_benchmark(f"{base}-Plus-{axis}").tasks
            assert len(tasks) == NUM_TASKS[base][list(AXES).index(axis)]
            assert all(bddl_file(task.suite, task.name).is_file() for task in tasks)
            for task in (tasks[0], tasks[-1]):
                stored = (
                    f"libero_newobj/{suite}/{task.name}" if axis == "layout" else f"{suite}/{read_name(task.name).base}"
                )
                rows = torch.load(plus_folder() / "init_files" / f"{stored}.pruned_init", weights_only=False)
                np.testing.assert_array_equal(start_states(task.suite, task.name)[0], np.atleast_2d(rows)[0])
