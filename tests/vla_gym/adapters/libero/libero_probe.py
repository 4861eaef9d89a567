"""Run in the process of `probe`, see `conftest.py`: simulators of ours that live in one process, and upstream's tables.

Everything here returns plain data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from vla_gym import VLAVectorEnv, find_benchmark, make_vec
from vla_gym.specs import StartState

ENV_ID = "LIBERO-Spatial/3"


def digest(array: np.ndarray) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


def simulators(envs: VLAVectorEnv) -> list[Any]:
    sub_envs: Any = envs.pool._envs  # type: ignore[attr-defined]
    return [sub_env._simulator for sub_env in sub_envs]


@contextmanager
def opened(env_id: str, num_envs: int = 1, **options: Any) -> Iterator[VLAVectorEnv]:
    """Slots of this process, 64 px wide unless said otherwise."""
    envs = make_vec(env_id, num_envs, num_workers=0, **{"image_size": 64, **options})
    try:
        yield envs
    finally:
        envs.close()


def moved(envs: VLAVectorEnv) -> dict[str, np.ndarray]:
    """Observations after a decision in which the arm goes away."""
    return envs.step(np.full(envs.action_space.shape, 0.3, dtype=np.float32))[0]


def protocols(*names: str) -> list[dict[str, Any]]:
    """What trial 3 is like after each protocol's settling; `time` is how long it took, simulated seconds."""
    reports = []
    for name in names:
        with opened(ENV_ID, wrist_camera=True, protocol=name, chunk=2) as envs:
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
    return reports


def physics(*names: str) -> list[dict[str, Any]]:
    """The start state of trial 3 and the positions three steps of a free arm later, by each physics."""
    reports = []
    for name in names:
        with opened(ENV_ID, physics=name, chunk=3) as envs:
            _, infos = envs.reset(options={"task_id": 0, "trial_id": 3})
            moved(envs)
            (simulator,) = simulators(envs)
            reports.append({"start_state": infos["start_state"][0], "qpos": simulator._data.qpos.tolist()})
    return reports


def pictures(*qualities: str) -> list[list[dict[str, np.ndarray]]]:
    """Observations of trial 3 at its start and four steps later, by each quality."""
    seen = []
    for quality in qualities:
        with opened(ENV_ID, wrist_camera=True, chunk=4, render_quality=quality) as envs:
            assert envs.protocol()["constants"]["render_quality"] == quality
            seen.append([envs.reset(options={"task_id": 0, "trial_id": 3})[0], moved(envs)])
    return seen


def group(size: int) -> dict[str, Any]:
    """Arrays of a group's slots, before and after it begins anew; and of another loading of the same task.

    The slots share a model. So the other loading, which compares the fixtures too, has a model and a settling of
    its own: its pictures are of another size.
    """
    with opened(ENV_ID, size, group_size=size, image_size=32, chunk=3) as envs, opened(ENV_ID, image_size=40) as other:
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
    differ = []
    with opened("LIBERO-Goal/7", 2, group_size=2) as envs:
        envs.reset(options={"task_id": 0, "trial_id": 0})
        slots = simulators(envs)
        for beyond in (-0.02, 0.02, -0.02):
            for slot, turn in zip(slots, (beyond, -0.02), strict=True):
                for lamp, _ in slot._lamps:
                    slot._data.qpos[lamp.qpos] = lamp.threshold + turn
                for _ in range(2):  # the lamp follows the knob a step later
                    slot.step(np.zeros(7, dtype=np.float32))
            first, second = (slot.observe()["image"] for slot in slots)
            differ.append(int((first != second).any(axis=2).sum()))
    return differ


def scenes(quality: str, tasks: Sequence[int]) -> list[list[str]]:
    """State and images after a decision in each of these tasks of LIBERO-130: as they are loaded; from memory, in
    another order; and, of six at most, with each scene dropped when the next begins."""
    passes = []
    options = {"wrist_camera": True, "chunk": 2, "render_quality": quality, "autoreset_mode": "disabled"}
    with opened("LIBERO-130", **options) as envs, pytest.MonkeyPatch.context() as patch:
        for order in (tasks, np.random.default_rng(0).permutation(tasks).tolist(), tasks[:6]):
            if len(passes) == 2:
                patch.setenv("VLA_ZOO_WORKER_GB", "0")
            seen = {}
            for task in order:
                envs.reset(options={"task_id": task, "trial_id": 0})
                obs = moved(envs)
                seen[task] = "".join(digest(obs[key]) for key in ("state", "image", "wrist_image"))
            passes.append([seen[task] for task in tasks if task in seen])
    return passes


SLOTS = ((3, 64), (27, 64), (27, 96))
"""(Task of LIBERO-130, width of its picture) of slots that share a process."""


def shared() -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
    """What each of `SLOTS` sees at the reset and after each of two decisions: while all are open, and alone."""

    def slot(size: int) -> AbstractContextManager[VLAVectorEnv]:
        return opened("LIBERO-130", image_size=size, chunk=2, autoreset_mode="disabled")

    def begun(envs: VLAVectorEnv, task: int) -> np.ndarray:
        return envs.reset(options={"task_id": task, "trial_id": 0})[0]["image"][0]

    with ExitStack() as stack:
        slots = [stack.enter_context(slot(size)) for _, size in SLOTS]
        together = [[begun(envs, task)] for envs, (task, _) in zip(slots, SLOTS, strict=True)]
        for _ in range(2):
            for images, envs in zip(together, slots, strict=True):
                images.append(moved(envs)["image"][0])
    alone = []
    for task, size in SLOTS:
        with slot(size) as envs:
            alone.append([begun(envs, task), *(moved(envs)["image"][0] for _ in range(2))])
    return together, alone


def settled(env_id: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Name -> what a `LiberoSimulator` makes of the start state `origin:trial`."""
    from vla_gym.adapters.libero.compile import start_regions
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


def samplers(env_id: str, seed: int) -> dict[str, Any]:
    """Largest difference of a pose between upstream's samplers and `draw_poses` on one stream of numbers."""
    from vla_gym.adapters.libero.compile import bddl_file
    from vla_gym.adapters.libero.placements import draw_poses
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


def goals(env_id: str, count: int) -> list[tuple[bool, bool]]:
    """Whether our conditions and upstream's hold, of so many placements near the goal."""
    import mujoco

    from vla_gym.adapters.libero.compile import bddl_file
    from vla_gym.adapters.libero.goals import goal_satisfied
    from vla_gym.adapters.libero.upstream import make_domain, read_goal

    (task,) = find_benchmark(env_id).tasks
    domain = make_domain(bddl_file(task.suite, task.name))
    model, data = domain.sim.model._model, domain.sim.data._data
    goal = read_goal(domain)
    rng, found = np.random.default_rng(0), []
    home = data.qpos.copy()
    for _ in range(count):
        data.qpos[:] = home
        for condition in goal:
            if condition.kind == "joint":
                data.qpos[list(condition.qpos)] = condition.threshold + rng.uniform(-0.1, 0.1)
                continue
            address = model.jnt_qposadr[model.body_jntadr[condition.body]]
            place = data.xpos if condition.kind == "on_object" else data.site_xpos
            spread = rng.choice([0.01, 0.1])
            data.qpos[address : address + 3] = place[condition.target] + rng.uniform(-spread, spread, 3)
        mujoco.mj_forward(model, data)
        found.append((goal_satisfied(goal, model, data), bool(domain._check_success())))
    return found


def axes() -> dict[str, tuple[bool, dict[str, float]]]:
    """Axis of LIBERO-Plus -> whether its start state differs from LIBERO-Goal's, and how far what is seen of it does;
    then two simulators see their own of one scene that they share."""
    from vla_gym.adapters.libero.plus_simulator import LiberoPlusSimulator
    from vla_gym.adapters.libero.plus_tasks import read_name
    from vla_gym.adapters.libero.simulator import SCENES, TASKS, LiberoSimulator

    scenes_before, tasks_before = set(SCENES._loaded), set(TASKS._loaded)

    def simulator(env_id: str) -> LiberoSimulator:
        benchmark = find_benchmark(env_id)
        kind = LiberoPlusSimulator if "Plus" in env_id else LiberoSimulator
        return kind(benchmark.tasks, 64, ("image", "wrist_image"), **benchmark.simulator_kwargs)

    unchanged = simulator("LIBERO-Goal")
    started = unchanged.reset(StartState(task_id=0, trial_id=0))
    seen = unchanged.observe()
    base = find_benchmark("LIBERO-Goal").tasks[0].name
    found = {}
    for axis in ("camera", "robot", "language", "noise"):
        tasks = find_benchmark(f"LIBERO-Goal-Plus-{axis}").tasks
        index = [k for k, task in enumerate(tasks) if read_name(task.name).base == base][-1]
        changed = simulator(f"LIBERO-Goal-Plus-{axis}")
        differs = changed.reset(StartState(task_id=index, trial_id=0)) != started
        apart = {key: float(np.abs(value - seen[key].astype(float)).mean()) for key, value in changed.observe().items()}
        found[axis] = differs, apart

    one, other = (simulator("LIBERO-Goal-Plus-camera") for _ in range(2))
    first: dict[int, np.ndarray] = {}
    for task in (0, 40, 0):
        one.reset(StartState(task_id=task, trial_id=0))
        image = one.observe()["image"]
        other.reset(StartState(task_id=task + 1, trial_id=0))
        assert (other.observe()["image"] != image).any()
        assert (one.observe()["image"] == image).all()
        assert (first.setdefault(task, image) == image).all()
    assert len(set(SCENES._loaded) - scenes_before) <= 1
    assert len(set(TASKS._loaded) - tasks_before) <= 3
    return found
