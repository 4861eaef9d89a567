"""Meta-World's own task classes, stepped without unread numbers: bit for bit the same physics and rewards.

Upstream's `step` spends four fifths of its time in Python: quaternions that no reward reads, contact lists
searched object by object, named lookups. `LeanEnv` goes in front of a task class and replaces those; resets,
success and rewards stay upstream's code. `tests/vla_gym/adapters/metaworld/test_identity.py` compares all
50 tasks with `env.step`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from vla_gym.adapters.mujoco import model_store
from vla_gym.system.cache import cache_dir, check_writable

READS_QUATERNIONS = ("assembly", "box-close", "disassemble", "hammer")
"""Tasks whose reward reads the objects' orientation; for the others it is left zero."""
FRAME = 18
"""Length of one observation frame: hand 3, gripper 1, objects 14."""
OBJECT = 7
"""Position and quaternion of one object in a frame."""
FRAME_SKIP = 5
INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION


class LeanEnv:
    """Mixin before a `SawyerXYZEnv` subclass, whose attributes it reads; made by `make_env`."""

    model: mujoco.MjModel
    data: mujoco.MjData
    fullpath: str
    reset: Callable[[], Any]
    action_scale: float
    mocap_low: np.ndarray
    mocap_high: np.ndarray
    evaluate_state: Callable[[np.ndarray, np.ndarray], tuple[float, dict[str, Any]]]
    _target_pos: np.ndarray
    _HAND_SPACE: Any
    _get_curr_obs_combined_no_goal: Callable[[], np.ndarray]
    _get_pos_goal: Callable[[], np.ndarray]
    _get_pos_objects: Callable[[], np.ndarray]
    _get_quat_objects: Callable[[], np.ndarray]

    lean_task: str
    """Name in `tasks.TASKS`."""

    def freeze(self, goal: np.ndarray) -> None:
        """Let every reset from now on begin with the start state of `goal`; `set_task` without its pickle."""
        self._set_task_called = True
        self._freeze_rand_vec = True
        self._last_rand_vec = goal
        self._partially_observable = False

    def advance(self, action_A: np.ndarray) -> tuple[float, bool]:
        """Advance one policy step with float32 `[4]`; return Meta-World's dense reward and success.

        Left out of upstream's `step` without effect: contact forces on bodies (nothing reads them) and
        moving the target's site, which the forward pass overwrites.
        """
        model, data = self.model, self.data
        delta = np.minimum(np.maximum(action_A[:3], -1), 1) * self.action_scale
        target = np.minimum(np.maximum(data.mocap_pos[0] + delta, self.mocap_low), self.mocap_high)
        data.mocap_pos[:] = target
        data.mocap_quat[:] = (1.0, 0.0, 1.0, 0.0)
        data.ctrl[0], data.ctrl[1] = action_A[3], -action_A[3]
        mujoco.mj_step(model, data, nstep=FRAME_SKIP)
        mujoco.mj_forward(model, data)
        reward, info = self.evaluate_state(self._frame(), action_A)
        return float(reward), bool(info["success"])

    def proprio(self) -> np.ndarray:
        """Return float64 `[4]`: hand position and gripper opening, the head of upstream's observation."""
        right, left = self._claws
        state = np.empty(4)
        state[:3] = self._hand.xpos
        state[3] = min(max(float(np.linalg.norm(right - left)) / 0.1, 0.0), 1.0)
        return np.clip(state, *self._hand_bounds)

    def full_observation(self) -> np.ndarray:
        """Return float64 `[39]` as upstream's scripted experts read it, the goal included.

        The 18 numbers of the previous step, which they do not read, repeat the present ones.
        """
        frame = self._get_curr_obs_combined_no_goal()
        frame[:4] = self.proprio()
        return np.concatenate([frame, frame, self._get_pos_goal()])

    def moving_state(self) -> bytes:
        """Return everything that a reset sets: the simulation state, the bodies and sites it moves, and the goal."""
        state = np.empty(mujoco.mj_stateSize(self.model, INTEGRATION))
        mujoco.mj_getState(self.model, self.data, state, INTEGRATION)
        moved = (state, self.model.body_pos, self.model.body_quat, self.model.site_pos, self._target_pos)
        return b"".join(np.ascontiguousarray(part, dtype=np.float64).tobytes() for part in moved)

    def touching_object(self, object_geom_id: int) -> bool:
        """Whether both pads press on the object: upstream's method with the contacts read in one go."""
        contact, force = self.data.contact, self.data.efc_force
        pairs = contact.geom
        on_object = (pairs == object_geom_id).any(axis=1)
        for pad in self._pads:
            rows = np.flatnonzero(on_object & (pairs == pad).any(axis=1))
            if not sum(force[row] for row in contact.efc_address[rows]) > 0:
                return False
        return True

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        model = compiled_model(self.lean_task, self.fullpath)
        return model, mujoco.MjData(model)

    @functools.cached_property
    def _pads(self) -> tuple[int, int]:
        return self.model.geom("leftpad_geom").id, self.model.geom("rightpad_geom").id

    @functools.cached_property
    def _hand(self) -> Any:
        return self.data.body("hand")

    @functools.cached_property
    def _claws(self) -> tuple[np.ndarray, np.ndarray]:
        return self.data.body("rightclaw").xpos, self.data.body("leftclaw").xpos

    @functools.cached_property
    def _hand_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.append(self._HAND_SPACE.low, -1.0), np.append(self._HAND_SPACE.high, 1.0)

    def _frame(self) -> np.ndarray:
        """The present frame `[18]` as `evaluate_state` reads it; see `READS_QUATERNIONS`."""
        frame = np.zeros(FRAME)
        frame[:4] = self.proprio()
        objects = np.reshape(self._get_pos_objects(), (-1, 3))
        quats = None
        if self.lean_task in READS_QUATERNIONS:
            quats = np.reshape(self._get_quat_objects(), (-1, 4))
        for index, position in enumerate(objects):
            start = 4 + OBJECT * index
            frame[start : start + 3] = position
            if quats is not None:
                frame[start + 3 : start + OBJECT] = quats[index]
        return frame


def make_env(task: str) -> LeanEnv:
    """Return a Meta-World environment of `task`, not reset yet; the scene comes from our cache."""
    upstream = ALL_V3_ENVIRONMENTS[f"{task}-v3"]
    env: LeanEnv = type(f"Lean{upstream.__name__}", (LeanEnv, upstream), {"lean_task": task})()
    return env


def start_vectors(env: LeanEnv, seed: int, number: int) -> np.ndarray:
    """Return the vectors of the first `number` start states of `env`'s task, float64 `[number, 3 or 6]`.

    The first 50 are those of `metaworld.MT1(task, seed).train_tasks`; more are drawn on from the same stream.

    A vector is drawn inside a reset, twice per reset, after rejection rules that read nothing but it. So the
    resets are run as upstream runs them, but without simulating: 60 ms instead of 0.6 s. `env` must be reset
    afterwards. NumPy's global generator, which upstream draws from, is put back.
    """
    upstream: Any = env
    upstream._set_task_called = True
    upstream._freeze_rand_vec = False
    upstream.do_simulation = lambda ctrl, n_frames: mujoco.mj_kinematics(env.model, env.data)
    before = np.random.get_state()
    np.random.seed(seed)
    vectors = []
    try:
        for _ in range(number):
            upstream.reset()
            vectors.append(np.array(upstream._last_rand_vec))
    finally:
        np.random.set_state(before)
        del upstream.do_simulation
    return np.stack(vectors)


def compiled_model(task: str, xml: str) -> mujoco.MjModel:
    """Return the scene of `task`, compiled from upstream's `xml` once per machine (0.1 s, then 5 ms)."""
    root = cache_dir() / "metaworld"
    folder = root / f"{version('metaworld')}-mujoco{version('mujoco')}" / task
    try:
        return model_store.load(folder, root / "pieces")
    except FileNotFoundError:  # also of what is damaged
        check_writable(root)
        model = mujoco.MjModel.from_xml_path(xml)
        model_store.save(model, folder, root / "pieces")
        return model
