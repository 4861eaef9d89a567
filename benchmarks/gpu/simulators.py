"""Control steps a second of the benchmarks' simulators, rendered by the GPU where that is available."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import vla_gym
from benchmarks.gpu.settings import Figures, Settings, Skipped
from vla_gym.errors import MissingDependency
from vla_gym.registry import find_benchmark
from vla_gym.vector.protocol import renderer

CHUNK = 8
IDS = {
    "libero": ("LIBERO-Spatial/0", 256),
    "metaworld": ("MetaWorld/reach", 224),
    "maniskill": ("ManiSkill/PickCube", 128),
}
"""Stage -> environment id, side of its images in pixels."""


def steps(name: str, settings: Settings) -> Figures:
    """Random chunks on worker processes, one simulator each: one of them, then all, which take turns to draw."""
    env_id, side = IDS[name]
    alone = _measure(env_id, side, 1, 1, settings)["steps/s"]
    found = _measure(env_id, side, settings.num_envs, settings.num_envs, settings)
    return {**found, "steps/s of one alone": alone, "times": float(found["steps/s"]) / float(alone)}


def gpu_physics(settings: Settings) -> Figures:
    """Random chunks on one batch of GPU physics."""
    env_id, side = IDS["maniskill"]
    return _measure(env_id, side, settings.batched_envs, settings.num_envs, settings, physics="gpu")


def _measure(env_id: str, side: int, num_envs: int, num_workers: int, settings: Settings, **options: Any) -> Figures:
    side = side if settings.size == "full" else 64
    try:
        started = time.perf_counter()
        envs = vla_gym.make_vec(
            env_id,
            num_envs,
            chunk=CHUNK,
            image_size=side,
            num_workers=num_workers,
            autoreset_mode="same_step",
            **options,
        )
    except MissingDependency as error:
        raise Skipped(str(error)) from error
    rng, executed = np.random.default_rng(0), 0
    envs.reset(seed=0)
    opened = time.perf_counter() - started

    def chunk() -> int:
        """Control steps of one chunk of every simulator."""
        action_NKA = rng.uniform(-1.0, 1.0, (num_envs, CHUNK, envs.single_action_space.shape[-1])).astype(np.float32)
        *_, infos = envs.step(action_NKA)
        ended = infos.get("final_info", {}).get("executed", 0)
        return int(np.sum(infos["executed"])) + int(np.sum(ended))

    chunk()  # controllers are compiled in the first
    start = time.perf_counter()
    while not executed or time.perf_counter() - start < 3 * settings.seconds:
        executed += chunk()
    took = time.perf_counter() - start
    envs.close()
    return {
        "environment": env_id,
        "simulators": num_envs,
        "workers": num_workers,
        "image, px": side,
        "rendered by": ", ".join(renderer(find_benchmark(env_id)).values()),
        "opened in, s": opened,
        "steps/s": executed / took,
        "images/s": executed / CHUNK / took,
    }
