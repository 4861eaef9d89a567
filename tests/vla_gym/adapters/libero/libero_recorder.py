"""Record one LIBERO episode, with our simulator or with LIBERO's own environment, as arrays in an npz file.

Run as `python libero_recorder.py SUITE_ID TASK TRIAL STEPS OUT.npz` it records LIBERO's own.
"""

from __future__ import annotations

import sys

import numpy as np

from vla_gym import find_benchmark
from vla_gym.adapters.libero.compile import bddl_file, start_states
from vla_gym.adapters.libero.tasks import PROTOCOLS
from vla_gym.specs import StartState

SIZE = 64


def actions(steps: int) -> np.ndarray:
    """Float32 `[steps, 7]`: full-range random motion, some without rotation, gripper open and closed."""
    rng = np.random.default_rng(7)
    chosen = rng.uniform(-1, 1, (steps, 7)).astype(np.float32)
    chosen[::5, 3:6] = 0.0
    chosen[:, 6] = np.where(np.arange(steps) // 10 % 2, 1.0, -1.0)
    return chosen


def adapter(suite_id: str, task: int, trial: int, steps: int) -> dict[str, list[np.ndarray]]:
    from vla_gym.adapters.libero.simulator import LiberoSimulator

    benchmark = find_benchmark(suite_id)
    simulator = LiberoSimulator(benchmark.tasks, SIZE, ("image", "wrist_image"), **dict(benchmark.simulator_kwargs))
    start = StartState(task_id=task, trial_id=trial)
    simulator.reset(start)
    simulator.observe()  # the pictures of a start state are remembered
    for action in actions(15):  # the second episode must be as good as the first
        simulator.step(-action)
    simulator.reset(start)
    log: dict[str, list[np.ndarray]] = {}

    def note(reward: float, done: bool) -> None:
        observation = simulator.observe()
        data = simulator._data
        entry = {"qpos": data.qpos, "qvel": data.qvel, "reward": reward, "done": done, **observation}
        for key, value in entry.items():
            log.setdefault(key, []).append(np.array(value))

    note(0.0, False)
    for action in actions(steps):
        step = simulator.step(action)
        note(step.reward, step.terminated)
    simulator.close()
    return log


def upstream(suite_id: str, task: int, trial: int, steps: int) -> dict[str, list[np.ndarray]]:
    from libero.libero.envs import OffScreenRenderEnv
    from robosuite.utils.transform_utils import quat2axisangle

    named = find_benchmark(suite_id).tasks[task]
    path = str(bddl_file(named.suite, named.name))
    env = OffScreenRenderEnv(bddl_file_name=path, camera_heights=SIZE, camera_widths=SIZE)
    env.seed(0)
    env.reset()
    env.set_init_state(start_states(named.suite, named.name)[trial])
    rules = PROTOCOLS["openvla-oft"]
    settle = np.array([0.0] * 6 + [rules.settle_gripper])
    log: dict[str, list[np.ndarray]] = {}

    def note(observation: dict[str, np.ndarray], reward: float, done: bool) -> None:
        state = [
            observation["robot0_eef_pos"],
            quat2axisangle(observation["robot0_eef_quat"].copy()),
            observation["robot0_gripper_qpos"],
        ]
        entry = {
            "qpos": env.sim.data.qpos,
            "qvel": env.sim.data.qvel,
            "reward": reward,
            "done": done,
            "image": observation["agentview_image"][::-1, ::-1],
            "wrist_image": observation["robot0_eye_in_hand_image"][::-1, ::-1],
            "state": np.concatenate(state).astype(np.float32),
        }
        for key, value in entry.items():
            log.setdefault(key, []).append(np.array(value))

    for _ in range(rules.settle_steps):
        observation, _, _, _ = env.step(settle)
    note(observation, 0.0, False)
    for action in actions(steps):
        observation, reward, done, _ = env.step(action.astype(np.float64))
        note(observation, reward, done)
    return log


if __name__ == "__main__":
    suite, task, trial, steps, out = sys.argv[1:]
    np.savez(out, **upstream(suite, int(task), int(trial), int(steps)))
