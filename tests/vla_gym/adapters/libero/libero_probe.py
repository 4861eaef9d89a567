"""Run by test_simulator.py in a process of its own, for it looks into simulators that live in one process.

`protocols NAME ...` plays one start state by each protocol in turn and prints what each begins with, as JSON;
`physics NAME ...` prints what three steps lead to by each physics;
`group SIZE` prints what the simulators of a group hold after they have settled; `stove` prints how the pictures
of two of them differ, one of which has its stove on; `scenes QUALITY COUNT` visits tasks of LIBERO-130 in random order,
twice, and prints digests of what a decision leads to in either pass.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from typing import Any

import numpy as np

from vla_gym import VLAVectorEnv, make_vec

ENV_ID = "LIBERO-Spatial/3"


def digest(array: np.ndarray) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


def simulators(envs: VLAVectorEnv) -> list[Any]:
    sub_envs: Any = envs.pool._envs  # type: ignore[attr-defined]
    return [sub_env._simulator for sub_env in sub_envs]


def protocols(names: list[str]) -> list[dict[str, Any]]:
    """What trial 3 is like after each protocol's settling; `time` is how long it took, simulated seconds."""
    reports = []
    for name in names:
        envs = make_vec(ENV_ID, 1, num_workers=0, image_size=64, wrist_camera=True, protocol=name, chunk=2)
        obs, infos = envs.reset(options={"task_id": 0, "trial_id": 3})
        (simulator,) = simulators(envs)
        reports.append(
            {
                "finger": float(obs["state"][0, 6]),
                "time": simulator._data.time,
                "start_state": infos["start_state"][0],
                "wrist_image": digest(obs["wrist_image"]),
            }
        )
        envs.close()
    return reports


def physics(names: list[str]) -> list[dict[str, Any]]:
    """The start state of trial 3 and the positions three steps of a free arm later, by each physics."""
    reports = []
    for name in names:
        envs = make_vec(ENV_ID, 1, num_workers=0, image_size=64, physics=name, chunk=3)
        _, infos = envs.reset(options={"task_id": 0, "trial_id": 3})
        envs.step(np.full((1, 3, 7), 0.3, dtype=np.float32))
        (simulator,) = simulators(envs)
        reports.append({"start_state": infos["start_state"][0], "qpos": simulator._data.qpos.tolist()})
        envs.close()
    return reports


def group(size: str) -> dict[str, Any]:
    """Arrays of a group's slots, before and after it begins anew; and of another loading of the same task.

    The slots share a model. So the other loading, which compares the fixtures too, has a model and a settling of
    its own: its pictures are of another size.
    """
    envs = make_vec(ENV_ID, int(size), group_size=int(size), num_workers=0, image_size=32, chunk=3)
    other = make_vec(ENV_ID, 1, num_workers=0, image_size=40)
    rng = np.random.default_rng(0)
    envs.reset(seed=0)
    envs.step(rng.uniform(-1, 1, envs.action_space.shape))
    apart = arrays(envs)
    _, infos = envs.reset()
    other.reset(options={"task_id": int(infos["task_id"][0]), "trial_id": (int(infos["trial_id"][0]) + 1) % 50})
    another = arrays(other)
    other.reset(options={key: int(infos[key][0]) for key in ("task_id", "trial_id")})
    return {"apart": apart, "together": arrays(envs), "alone": arrays(other), "another trial": another}


def arrays(envs: VLAVectorEnv) -> dict[str, list[str]]:
    """Digests of what the simulators of the slots hold, per slot."""
    models, datas = zip(*((simulator._model, simulator._data) for simulator in simulators(envs)), strict=True)
    return {
        **{key: [digest(getattr(data, key)) for data in datas] for key in ("qpos", "qvel")},
        **{key: [digest(getattr(model, key)) for model in models] for key in ("body_pos", "body_quat")},
    }


def stove() -> list[int]:
    """Pixels in which two slots' pictures differ, their knobs little: both off, one on, both off again."""
    envs = make_vec("LIBERO-Goal/7", 2, group_size=2, num_workers=0, image_size=64)
    envs.reset(options={"task_id": 0, "trial_id": 0})
    slots = simulators(envs)
    differ = []
    for beyond in (-0.02, 0.02, -0.02):
        for slot, turn in zip(slots, (beyond, -0.02), strict=True):
            for lamp, _ in slot._lamps:
                slot._data.qpos[lamp.qpos] = lamp.threshold + turn
            for _ in range(2):  # the lamp follows the knob a step later
                slot.step(np.zeros(7, dtype=np.float32))
        first, second = (slot.observe()["image"] for slot in slots)
        differ.append(int((first != second).any(axis=2).sum()))
    return differ


def scenes(quality: str, count: str) -> list[list[str]]:
    """State and images after a decision in each of so many tasks, by pass; the second in another order."""
    envs = make_vec(
        "LIBERO-130", 1, num_workers=0, image_size=64, wrist_camera=True, chunk=2, render_quality=quality,
        autoreset_mode="disabled",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    tasks = rng.permutation(len(envs.benchmark.tasks))[: int(count)]
    passes = []
    for order in (tasks, rng.permutation(tasks)):
        seen = {}
        for task in order.tolist():
            envs.reset(options={"task_id": task, "trial_id": 0})
            obs = envs.step(np.full((1, 2, 7), 0.3, dtype=np.float32))[0]
            seen[task] = "".join(digest(obs[key]) for key in ("state", "image", "wrist_image"))
        passes.append([seen[task] for task in tasks.tolist()])
    return passes


if __name__ == "__main__":
    ask = {
        "protocols": protocols,
        "physics": physics,
        "group": lambda words: group(*words),
        "stove": lambda _: stove(),
        "scenes": lambda words: scenes(*words),
    }[sys.argv[1]]
    with contextlib.redirect_stdout(sys.stderr):  # upstream prints
        answer = ask(sys.argv[2:])
    sys.stdout.write(json.dumps(answer))
