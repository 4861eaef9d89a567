"""Run by test_start_states.py in processes of its own: what start states are like after they have settled, as JSON.

`ENV_ID ORIGIN:TRIAL ...` resets to each in turn; `ENV_ID upstream SEED` compares our drawing with upstream's samplers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import numpy as np

from vla_gym import find_benchmark
from vla_gym.adapters.libero.compile import start_regions
from vla_gym.adapters.libero.placements import draw_poses
from vla_gym.specs import StartState


def settled(env_id: str, names: list[str]) -> dict[str, Any]:
    """Name -> what a `LiberoSimulator` makes of the start state `origin:trial`."""
    from vla_gym.adapters.libero.goals import goal_satisfied
    from vla_gym.adapters.libero.simulator import LiberoSimulator

    benchmark = find_benchmark(env_id)
    (task,) = benchmark.tasks
    addresses = [p.qpos for p in start_regions(task.suite, task.name).placings if p.qpos is not None]
    seen = {}
    for name in names:
        origin, trial = name.split(":")
        sim = LiberoSimulator(benchmark.tasks, 64, (), **{**benchmark.simulator_kwargs, "starts": origin})
        fingerprint = sim.reset(StartState(task_id=0, trial_id=int(trial)))
        row = sim._loaded.row(sim._untouched)
        began_O3, ended_O3 = (
            np.array([positions[address : address + 3] for address in addresses])
            for positions in (row[1:], sim._data.qpos)
        )
        seen[name] = {
            "fingerprint": fingerprint,
            "row": row.tolist(),
            "slid": float(np.linalg.norm((ended_O3 - began_O3)[:, :2], axis=1).max()),
            "heights": ended_O3[:, 2].tolist(),
            "solved": goal_satisfied(sim._compiled.goal, sim._model, sim._data),
        }
        sim.close()
    return seen


def upstream(env_id: str, seed: int) -> dict[str, Any]:
    """Largest difference of a pose between upstream's samplers and `draw_poses` on one stream of numbers."""
    from vla_gym.adapters.libero.compile import bddl_file
    from vla_gym.adapters.libero.upstream import make_domain, read_start_regions

    (task,) = find_benchmark(env_id).tasks
    domain = make_domain(bddl_file(task.suite, task.name))
    np.random.seed(seed)
    expected = domain.placement_initializer.sample()
    placings = read_start_regions(domain).placings
    poses = draw_poses(placings, [], np.random.RandomState(seed))
    apart = [
        np.abs(poses[placing.qpos] - np.concatenate(expected[placing.name][:2])).max()
        for placing in placings
        if placing.qpos is not None
    ]
    return {"apart": float(max(apart)), "objects": len(apart), "expected": len(expected)}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # upstream prints
        if sys.argv[2] == "upstream":
            answer = upstream(sys.argv[1], int(sys.argv[3]))
        else:
            answer = settled(sys.argv[1], sys.argv[2:])
    sys.stdout.write(json.dumps(answer))
