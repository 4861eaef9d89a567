"""Record tasks of LIBERO-Plus, with our simulator or with LIBERO-Plus's own classes, as arrays in an npz file.

Run as `python plus_recorder.py {adapter,upstream} OUT.npz FOLDER ENV_ID/K ...`: a fresh process each, for two renderers
in one process would draw into each other's GL context. FOLDER is scratch space.
"""

from __future__ import annotations

import collections
import collections.abc
import os
import pathlib
import pkgutil
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from vla_gym import find_benchmark
from vla_gym.adapters.libero.plus_tasks import ARCHIVE, plus_archive, plus_folder, read_name
from vla_gym.specs import Benchmark, StartState

STEPS = 4


def size_of(benchmark: Benchmark) -> int:
    """Width of pictures, px; upstream's noise is made for those of 256."""
    return 256 if read_name(benchmark.tasks[0].name).noise else 64


def actions() -> np.ndarray:
    """Float32 `[STEPS, 7]`."""
    return np.random.default_rng(7).uniform(-1, 1, (STEPS, 7)).astype(np.float32)


def adapter(benchmark: Benchmark) -> dict[str, list[np.ndarray]]:
    opened = pkgutil.resolve_name(benchmark.simulator)
    simulator = opened(benchmark.tasks, size_of(benchmark), ("image", "wrist_image"), **benchmark.simulator_kwargs)
    simulator.reset(StartState(task_id=0, trial_id=0))
    log: dict[str, list[np.ndarray]] = {}
    for action in [None, *actions()]:
        if action is not None:
            simulator.step(action)
        seen = simulator.observe()
        if read_name(benchmark.tasks[0].name).noise:  # the random numbers are ours: the image without them is compared
            simulator._changed = read_name(benchmark.tasks[0].name.partition("_noise_")[0])
            seen = {**simulator.observe(), "image": np.ascontiguousarray(simulator._draw()[0][::-1, ::-1])}
        for key, value in {"qpos": simulator._data.qpos, "instruction": benchmark.tasks[0].instruction, **seen}.items():
            log.setdefault(key, []).append(np.array(value))
    simulator.close()
    return log


def import_upstream(folder: pathlib.Path) -> Any:
    """LIBERO-Plus's env_wrapper module, with the archive's or LIBERO's meshes, without ImageMagick and scikit-image."""
    from libero.libero import get_libero_path
    from scipy.ndimage import gaussian_filter

    def gaussian(image: np.ndarray, sigma: float, channel_axis: int) -> np.ndarray:  # skimage.filters.gaussian
        assert channel_axis == -1
        smooth: np.ndarray = gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4.0)
        return smooth

    stubs: dict[str, dict[str, Any]] = {
        "wand": {},
        "wand.api": {"library": SimpleNamespace(MagickMotionBlurImage=SimpleNamespace())},
        "wand.image": {"Image": object},
        "skimage": {},
        "skimage.filters": {"gaussian": gaussian},
        "liberoplus.liberoplus.envs.venv": {"SubprocVectorEnv": object, "DummyVectorEnv": object},
    }
    for name, content in stubs.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)
    vars(collections).update(Iterable=collections.abc.Iterable)  # of Python before 3.10
    vars(np).update(float_=np.float64)  # of NumPy before 2
    os.environ["LIBERO_CONFIG_PATH"] = str(folder / "config")
    own = plus_archive("upstream") / "assets" if ARCHIVE in os.environ else get_libero_path("assets")
    (folder / "assets").symlink_to(own)
    from liberoplus.liberoplus.envs import bddl_base_domain, env_wrapper

    vars(bddl_base_domain)["DIR_PATH"] = str(folder / "envs")
    (folder / "envs").mkdir()
    for name, module in sys.modules.items():
        if name.startswith("liberoplus.") and "absolute_path" in vars(module):
            vars(module)["absolute_path"] = folder
    return env_wrapper


def upstream(wrapper: Any, benchmark: Benchmark) -> dict[str, list[np.ndarray]]:
    import torch
    from robosuite.utils.transform_utils import quat2axisangle

    suite, name = benchmark.tasks[0].suite.rpartition("_")[0], benchmark.tasks[0].name
    change, files = read_name(name), plus_folder()
    states = f"libero_newobj/{suite}/{name}" if change.axis == "layout" else f"{suite}/{change.base}"
    env = wrapper.OffScreenRenderEnv(
        bddl_file_name=str(files / "bddl_files" / suite / f"{name.partition('_noise_')[0]}.bddl"),
        camera_heights=size_of(benchmark),
        camera_widths=size_of(benchmark),
    )
    env.seed(0)
    env.reset()
    rows = torch.load(files / "init_files" / f"{states}.pruned_init", weights_only=False)
    env.set_init_state(np.atleast_2d(rows)[0])
    log: dict[str, list[np.ndarray]] = {}
    settle = np.array([0.0] * 6 + [-1.0])
    for number, action in enumerate([*[settle] * 10, *actions().astype(np.float64)]):
        seen = env.step(action)[0]
        if number < 9:
            continue
        turned = quat2axisangle(seen["robot0_eef_quat"].copy())
        entry = {
            "qpos": env.sim.data.qpos,
            "instruction": env.language_instruction,
            "image": seen["agentview_image"][::-1, ::-1],
            "wrist_image": seen["robot0_eye_in_hand_image"][::-1, ::-1],
            "state": np.concatenate([seen["robot0_eef_pos"], turned, seen["robot0_gripper_qpos"]]).astype(np.float32),
        }
        for key, value in entry.items():
            log.setdefault(key, []).append(np.array(value))
    env.close()
    return log


def main() -> None:
    who, out, folder, *names = sys.argv[1:]
    wrapper = import_upstream(pathlib.Path(folder)) if who == "upstream" else None
    logs = {}
    for name in names:
        benchmark = find_benchmark(name)
        logs[name] = adapter(benchmark) if wrapper is None else upstream(wrapper, benchmark)
    np.savez(out, **{f"{name} {key}": values for name, log in logs.items() for key, values in log.items()})


if __name__ == "__main__":
    main()
