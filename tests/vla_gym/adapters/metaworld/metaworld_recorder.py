"""Photograph Meta-World tasks, with our simulator or with upstream's `render()`, into an npz file.

Run as `python metaworld_recorder.py SIDE SIZE OUT.npz TASK...`, a fresh process for each side, for two renderers in one
process would draw into each other's GL context: our full pictures ("adapter"), our fast ones ("fast") and those with
every triangle drawn ("whole"), upstream's ("upstream", "corner2"). Each task gives two pictures, after the reset of
trial 3 and seven steps later.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from vla_gym.adapters.metaworld import simulator
from vla_gym.adapters.metaworld.tasks import metaworld_benchmark
from vla_gym.adapters.mujoco.camera import Camera
from vla_gym.specs import StartState

TRIAL = 3


def actions() -> np.ndarray:
    """Float32 `[7, 4]`."""
    return np.random.default_rng(5).uniform(-1, 1, (7, 4)).astype(np.float32)


def adapter(task: str, size: int, quality: str) -> list[np.ndarray]:
    benchmark = metaworld_benchmark(f"MetaWorld/{task}", protocol="lerobot", render_quality=quality)
    one = simulator.MetaWorldSimulator(benchmark.tasks, size, ("image",), **dict(benchmark.simulator_kwargs))
    one.reset(StartState(task_id=0, trial_id=TRIAL))
    pictures = [one.observe()["image"]]
    for action in actions():
        one.step(action)
    pictures.append(one.observe()["image"])
    one.close()
    return pictures


def every_triangle(*arguments: Any, sift: bool, **options: Any) -> Camera:
    """A camera that leaves none out; what was asked must be what fast pictures ask on this machine."""
    assert sift == simulator.NUMBA
    return Camera(*arguments, **options)


def upstream(task: str, size: int, camera: str) -> list[np.ndarray]:
    import metaworld

    benchmark = metaworld.MT1(f"{task}-v3", seed=42)
    make = benchmark.train_classes[f"{task}-v3"]
    env = make(render_mode="rgb_array", camera_name=camera, width=size, height=size)
    if camera == "corner2":
        env.model.cam_pos[2] = [0.75, 0.075, 0.7]  # what RLinf and lerobot do
    env.set_task(benchmark.train_tasks[TRIAL])
    env.reset()
    pictures = [env.render()[::-1, ::-1]]
    for action in actions():
        env.step(action)
    pictures.append(env.render()[::-1, ::-1])
    env.close()
    return pictures


if __name__ == "__main__":
    side, size, out, *tasks = sys.argv[1:]
    if side == "whole":
        simulator.Camera = every_triangle
    if side in ("adapter", "fast", "whole"):
        log = {task: adapter(task, int(size), "full" if side == "adapter" else "fast") for task in tasks}
    else:
        log = {task: upstream(task, int(size), {"upstream": "corner4"}.get(side, side)) for task in tasks}
    np.savez(out, **log)
