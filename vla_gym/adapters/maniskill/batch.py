"""A ManiSkill task as one batch of N slots: upstream's environment on GPU physics, its tensors on the device.

Start states come from `maniskill_starts` and are written over the slots that begin, so that a trial is the same state
in every slot. Nothing here asks upstream's random numbers for anything but PegInsertionSide's shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sapien
import torch

from vla_gym.adapters.maniskill.scene import COLOUR_ONLY, make_env
from vla_gym.adapters.maniskill.start_states import StartTable
from vla_gym.adapters.maniskill.tasks import CAMERAS, CONTROL_MODE, RANDOM_SHAPES, TaskReward
from vla_gym.errors import BadValue
from vla_gym.specs import StartState, Task
from vla_gym.workers.batch_pool import BatchStep

Saved = tuple[torch.Tensor, torch.Tensor]
"""State rows `[M, D]`, and `_memory` `[M]`, of M slots."""


class ManiSkillBatch:
    """All slots; see `vla_gym.workers.batch_pool.BatchSimulator`.

    Args:
        tasks: the benchmark's only task, by the name of `maniskill_tasks.TASKS`.
        image_size: side of the pictures, pixels.
        cameras: keys of `maniskill_tasks.CAMERAS`.
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
        self._env: Any = make_env(
            f"{self._task.name}-v1",
            control_mode=CONTROL_MODE,
            sensors={"width": image_size, "height": image_size},
            num_envs=num_envs,
            sim_backend=sim_backend,
            reward_mode="none",
        )
        self._env.reconfiguration_freq = 0  # `_shape` rebuilds what must be rebuilt
        self._shape_seeds: list[int | None] = [None] * num_envs
        self._starts = StartTable(
            self._task,
            first_seed=first_seed,
            state_dim=self._env.get_state().shape[1],
            num_workers=num_workers,
        )

    def reset(self, starts: Mapping[int, StartState]) -> dict[int, str]:
        """Write start states over the given slots; nothing is drawn."""
        slots = list(starts)
        trials = [starts[slot].trial_id for slot in slots]
        drawn = self._starts.rows(trials)
        if self._task.name in RANDOM_SHAPES:
            self._shape({slot: self._first_seed + trial for slot, trial in zip(slots, trials, strict=True)})
        row_MD = torch.from_numpy(np.stack([row for _, row in drawn])).to(self._env.device)
        self.restore(slots, (row_MD, torch.zeros(len(slots), device=self._env.device)))
        return {slot: fingerprint for slot, (fingerprint, _) in zip(slots, drawn, strict=True)}

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
        """Poses, velocities and joints of some slots, and what the task keeps beside them."""
        index = torch.tensor(slots, device=self._env.device)
        return self._env.get_state()[index].clone(), self._memory()[index].clone()

    def restore(self, slots: Sequence[int], saved: Saved) -> None:
        """Write states over the given slots; upstream reads rows in the slots' ascending order."""
        env, (row_MD, memory_M) = self._env, saved
        index = torch.tensor(slots, device=env.device)
        env.reset(options={"env_idx": index, "reset_to_env_states": {"env_states": row_MD}})
        self._memory()[index] = memory_M
        if (
            self._task.name == "PlugCharger"
        ):  # upstream keeps what it computes from the receptacle at its own resets
            half_turn_about_z = sapien.Pose(q=[0.0, 0.0, 0.0, 1.0])
            env.goal_pose = env.receptacle.pose * half_turn_about_z

    def observe(self) -> dict[str, np.ndarray]:
        """Draw every slot now; `state` is the joints' positions."""
        env = self._env
        seen = {"state": env.agent.robot.get_qpos().cpu().numpy().astype(np.float32)}
        env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        for key, camera in self._cameras.items():
            sensor = env._sensors[camera]
            sensor.capture()
            drawn = sensor.get_obs(**COLOUR_ONLY)["rgb"]
            if drawn.is_cuda:
                torch.cuda.synchronize()  # as upstream does: the picture comes from another library's stream
            seen[key] = drawn.cpu().numpy()
        return seen

    def close(self) -> None:
        """Free the scenes."""
        self._starts.close()
        self._env.close()

    def _memory(self) -> torch.Tensor:
        """What a task remembers outside the state, `[N]`: RollBall's dense reward, whether the ball was reached."""
        memory: torch.Tensor | None = getattr(self._env, "reached_status", None)
        return torch.zeros(self._env.num_envs, device=self._env.device) if memory is None else memory

    def _shape(self, seeds: Mapping[int, int]) -> None:
        """Build everything anew if a slot needs other shapes; the other slots get their states back."""
        wanted = [seeds.get(slot, present) for slot, present in enumerate(self._shape_seeds)]
        if wanted == self._shape_seeds:
            return
        everyone = list(range(len(wanted)))
        saved = self.save(everyone)
        self._env.reset(
            seed=[self._first_seed if seed is None else seed for seed in wanted],
            options={"reconfigure": True},
        )
        self.restore(everyone, saved)
        self._shape_seeds = wanted
