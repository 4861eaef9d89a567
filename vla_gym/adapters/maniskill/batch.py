"""A ManiSkill task as one batch of N slots: upstream's environment on GPU physics, its tensors on the device.

Start states are rows of numbers, drawn on CPU physics (`StartTable`) and written over the slots that begin, so that a
trial is the same state in every slot. Upstream's random numbers decide nothing but PegInsertionSide's shapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import sapien
import torch

from vla_gym.adapters.maniskill.simulator import ManiSkillSimulator, make_env
from vla_gym.adapters.maniskill.tasks import CAMERAS, RANDOM_SHAPES, TaskReward
from vla_gym.errors import BadValue
from vla_gym.observation import ObservationLayout
from vla_gym.specs import RewardRule, StartState, Task
from vla_gym.system.child import python_path
from vla_gym.workers.batch_pool import BatchStep
from vla_gym.workers.messages import Command, MemoryLayout, SubEnvSetup
from vla_gym.workers.pool import LocalPool, Pool
from vla_gym.workers.process_pool import BLAS_THREADS, ProcessPool

COLOUR_ONLY = {"rgb": True, "depth": False, "position": False, "segmentation": False}
TIMEOUT = 600.0
"""Seconds a worker may take to start, or to draw one start state."""
Saved = tuple[torch.Tensor, torch.Tensor]
"""State rows `[M, D]`, and `_reached` `[M]`, of M slots."""


class StartSource(ManiSkillSimulator):
    """The CPU adapter without images; its observation is upstream's flat state row."""

    def observe(self) -> dict[str, np.ndarray]:
        """Return `state`: float32 `[D]`, poses and velocities of all bodies and joints."""
        return {"state": np.array(self._env.get_state()[0].numpy(), dtype=np.float32)}


class StartTable:
    """Trial -> (state_hash, state row float32 `[D]`), each drawn once, on first use, in worker processes.

    Upstream draws a batch's start states from one stream of numbers, so that a slot's depends on how many slots there
    are. Here trial k is upstream's `reset(seed=k)` of a single environment, whatever the batch.

    Args:
        task: the benchmark's only one.
        first_seed: upstream's seed of trial 0.
        state_dim: D.
        num_workers: processes that draw; 0 draws in this one.
    """

    def __init__(self, task: Task, *, first_seed: int, state_dim: int, num_workers: int) -> None:
        self._rows: dict[int, tuple[str, np.ndarray]] = {}
        self._width = max(1, num_workers)
        setup = SubEnvSetup(
            env_id=f"start states of ManiSkill/{task.name}",
            simulator=f"{__name__}:{StartSource.__name__}",
            simulator_kwargs={"first_seed": first_seed},
            tasks=(task,),
            rule=RewardRule(),
            memory=MemoryLayout(
                num_slots=self._width,
                chunk=1,
                action_dim=7,
                observation=ObservationLayout(cameras=(), image_size=8, state_dim=state_dim),
            ),
        )
        self._pool: Pool
        if num_workers:
            environment = {**os.environ, **dict.fromkeys(BLAS_THREADS, "1"), "PYTHONPATH": python_path()}
            self._pool = ProcessPool(setup, [environment] * num_workers, step_timeout=TIMEOUT, reset_timeout=TIMEOUT)
        else:
            self._pool = LocalPool(setup)

    def rows(self, trials: Iterable[int]) -> list[tuple[str, np.ndarray]]:
        """Return state_hash and state row of each trial."""
        trials = list(trials)
        missing = sorted(set(trials) - self._rows.keys())
        for begin in range(0, len(missing), self._width):
            drawn = missing[begin : begin + self._width]
            reports = self._pool.run(
                [
                    Command(slot=slot, start=StartState(task_id=0, trial_id=trial), kind="reset")
                    for slot, trial in enumerate(drawn)
                ]
            )
            for slot, (trial, report) in enumerate(zip(drawn, reports, strict=True)):
                self._rows[trial] = (report.start_state, self._pool.memory.observation["state"][slot].copy())
        return [self._rows[trial] for trial in trials]

    def close(self) -> None:
        self._pool.close()


class ManiSkillBatch:
    """All slots; see `vla_gym.workers.batch_pool.BatchSimulator`.

    Args:
        tasks, image_size, cameras: as of `Simulator`, with one task.
        num_envs: N.
        num_workers: processes that draw start states on CPU physics.
        first_seed: upstream's seed of trial 0; trial k has `first_seed + k`.
        task_reward: "success" (0 or 1) or "dense" (upstream's normalised one, 0 .. 1).
        sim_backend: upstream's name of the physics. "physx_cpu" takes one slot, and is for tests.
    """

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        num_envs: int,
        num_workers: int,
        first_seed: int,
        task_reward: TaskReward = "success",
        sim_backend: str = "physx_cuda",
    ) -> None:
        (self._task,) = tasks
        if sim_backend != "physx_cpu" and num_workers < 1:
            raise BadValue(
                f"num_workers must be >= 1 with physics='gpu' (they draw the start states), got {num_workers}"
            )
        self._cameras = {key: CAMERAS[key] for key in cameras}
        self._first_seed, self._dense = first_seed, task_reward == "dense"
        self._env: Any = make_env(self._task.name, image_size, num_envs=num_envs, sim_backend=sim_backend)
        self._env.reconfiguration_freq = 0  # `_shape` rebuilds the scenes that other shapes need
        self._shape_seeds: list[int | None] = [None] * num_envs
        state_dim = self._env.get_state().shape[1]
        self._starts = StartTable(self._task, first_seed=first_seed, state_dim=state_dim, num_workers=num_workers)

    def reset(self, starts: Mapping[int, StartState]) -> dict[int, str]:
        slots = list(starts)
        trials = [starts[slot].trial_id for slot in slots]
        drawn = self._starts.rows(trials)
        if self._task.name in RANDOM_SHAPES:
            self._shape({slot: self._first_seed + trial for slot, trial in zip(slots, trials, strict=True)})
        row_MD = torch.from_numpy(np.stack([row for _, row in drawn])).to(self._env.device)
        self.restore([(slots, (row_MD, torch.zeros(len(slots), device=self._env.device)))])
        return {slot: state_hash for slot, (state_hash, _) in zip(slots, drawn, strict=True)}

    def step(self, action_NA: np.ndarray) -> BatchStep:
        """Advance 1/20 s; success ends an episode."""
        env = self._env
        action = torch.from_numpy(action_NA).to(env.device)
        *_, info = env.step(action)
        success_N = info["success"].cpu().numpy().astype(np.bool_)
        reward_N = success_N.astype(np.float64)
        if self._dense:
            dense = env.compute_normalized_dense_reward(obs=None, action=action, info=info)
            reward_N = dense.cpu().numpy().astype(np.float64)
        return BatchStep(reward_N=reward_N, success_N=success_N, terminated_N=success_N)

    def save(self, slots: Sequence[int]) -> Saved:
        """Return poses, velocities and joints of some slots, and `_reached`."""
        index = torch.tensor(slots, device=self._env.device)
        return self._env.get_state()[index].clone(), self._reached()[index].clone()

    def restore(self, held: Sequence[tuple[Sequence[int], Saved]]) -> None:
        """Write states over the given slots, all at once; upstream reads rows in the slots' ascending order."""
        env = self._env
        index, order = torch.tensor([slot for slots, _ in held for slot in slots], device=env.device).sort()
        row_MD, reached_M = (torch.cat(parts)[order] for parts in zip(*(saved for _, saved in held), strict=True))
        env.reset(options={"env_idx": index, "reset_to_env_states": {"env_states": row_MD}})
        self._reached()[index] = reached_M
        if self._task.name == "PlugCharger":  # upstream computes it from the receptacle at its own resets
            half_turn_about_z = sapien.Pose(q=[0.0, 0.0, 0.0, 1.0])
            env.goal_pose = env.receptacle.pose * half_turn_about_z

    def observe(self) -> dict[str, np.ndarray]:
        """Draw every slot now; `state` is the joints' positions."""
        env = self._env
        observation = {"state": env.agent.robot.get_qpos().cpu().numpy().astype(np.float32)}
        env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        for key, camera in self._cameras.items():
            sensor = env._sensors[camera]
            sensor.capture()
            drawn = sensor.get_obs(**COLOUR_ONLY)["rgb"]
            if drawn.is_cuda:
                torch.cuda.synchronize(drawn.device)  # as upstream does: the image comes from another library's stream
            observation[key] = drawn.cpu().numpy()
        return observation

    def close(self) -> None:
        self._starts.close()
        self._env.close()

    def _reached(self) -> torch.Tensor:
        """Whether the ball was reached, `[N]`: the part of a task's state that RollBall's dense reward keeps apart."""
        reached: torch.Tensor | None = getattr(self._env, "reached_status", None)
        return torch.zeros(self._env.num_envs, device=self._env.device) if reached is None else reached

    def _shape(self, seeds: Mapping[int, int]) -> None:
        """Build everything anew if a slot needs other shapes; the other slots get their states back."""
        needed = [seeds.get(slot, present) for slot, present in enumerate(self._shape_seeds)]
        if needed == self._shape_seeds:
            return
        slots = list(range(len(needed)))
        saved = self.save(slots)
        seeds_N = [self._first_seed if seed is None else seed for seed in needed]
        self._env.reset(seed=seeds_N, options={"reconfigure": True})
        self.restore([(slots, saved)])
        self._shape_seeds = needed
