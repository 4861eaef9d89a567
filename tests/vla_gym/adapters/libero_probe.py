"""Run by test_libero.py in a process of its own, for it looks into simulators that live in one process.

`protocols NAME ...` plays one start state by each protocol in turn and prints what each begins with, as JSON.
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
    slots: Any = envs.pool._slots  # type: ignore[attr-defined]
    return [slot._simulator for slot in slots]


def protocols(names: list[str]) -> list[dict[str, Any]]:
    """What trial 3 is like after each protocol's settling; `time` is how long it took, simulated seconds."""
    told = []
    for name in names:
        envs = make_vec(ENV_ID, 1, num_workers=0, image_size=64, wrist_camera=True, protocol=name, chunk=2)
        obs, infos = envs.reset(options={"task_id": 0, "trial_id": 3})
        (simulator,) = simulators(envs)
        told.append(
            {
                "finger": float(obs["state"][0, 6]),
                "time": simulator._data.time,
                "start_state": infos["start_state"][0],
                "wrist_image": digest(obs["wrist_image"]),
            }
        )
        envs.close()
    return told


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # upstream prints
        answer = {"protocols": protocols}[sys.argv[1]](sys.argv[2:])
    sys.stdout.write(json.dumps(answer))
