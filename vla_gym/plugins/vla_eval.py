"""Our benchmarks in vla-eval's runs: `benchmark: "vla_gym.plugins.vla_eval:VLAGymBenchmark"` in its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.specs import IMAGE_RGB, LANGUAGE, DimSpec

from vla_gym.plugins.vla_eval_names import action_parts, state_format, vla_eval_observation
from vla_gym.registry import find_benchmark
from vla_gym.single_env import VLAEnv


class VLAGymBenchmark(StepBenchmark):
    """The tasks of an id; episode i of a task begins at its start state i.

    Args:
        env_id: a suite or one task of it; `vla-zoo envs` lists them.
        send_wrist_image: add the wrist camera; servers ask for it themselves.
        send_state: add the proprioceptive state, likewise.
        image_size: side of the images, pixels; the benchmark's own by default.
        env_kwargs: the benchmark's options, such as `{protocol: libero}`.
    """

    def __init__(
        self,
        env_id: str,
        send_wrist_image: bool = False,
        send_state: bool = False,
        image_size: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.benchmark = find_benchmark(env_id, **(env_kwargs or {}))
        wrist = send_wrist_image and "wrist_image" in self.benchmark.cameras
        self._env = VLAEnv(
            self.benchmark, encoding="text", num_workers=0, image_size=image_size, wrist_camera=wrist, state=send_state
        )

    def get_tasks(self) -> list[dict[str, Any]]:
        return [
            {"name": task.instruction, "suite": task.suite, "task_id": number, "task": task.name}
            for number, task in enumerate(self.benchmark.tasks)
        ]

    def reset(self, task: Mapping[str, Any]) -> dict[str, Any]:
        task_id = task["task_id"]
        trial_id = task.get("episode_idx", 0) % self.benchmark.tasks[task_id].num_trials
        obs, _ = self._env.reset(options={"task_id": task_id, "trial_id": trial_id})
        self._recorder.record_video(obs["image"])
        return obs

    def step(self, action: Mapping[str, Any]) -> StepResult:
        action_A = np.asarray(action.get("actions", action.get("action")), dtype=np.float32)
        obs, reward, terminated, truncated, info = self._env.step(action_A)
        result = StepResult(obs=obs, reward=reward, done=terminated or truncated, info=info)
        self._recorder.record_video(obs["image"])
        self._recorder.record_step(reward=reward, done=result.done, action=action_A, **self.get_step_result(result))
        return result

    def make_obs(self, raw_obs: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
        return vla_eval_observation(raw_obs)

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        return {"success": bool(step_result.info.get("is_success", False))}

    def get_metadata(self) -> dict[str, Any]:
        tasks = self.benchmark.tasks
        return {
            "max_steps": max(task.horizon for task in tasks),
            "max_episodes_per_task": min(task.num_trials for task in tasks),
            "suite": self.benchmark.id,
            "protocol": dict(self.benchmark.protocol),
        }

    def get_action_spec(self) -> dict[str, DimSpec]:
        parts = action_parts(self.benchmark.action_spec, self.benchmark.action_dim)
        return {name: DimSpec.from_dict(part) for name, part in parts.items()}

    def get_observation_spec(self) -> dict[str, DimSpec]:
        layout = self._env.envs.layout
        images = dict.fromkeys(vla_eval_observation(dict.fromkeys(layout.arrays()))["images"], IMAGE_RGB)
        state = {"state": DimSpec("state", layout.state_dim, state_format(self.benchmark.protocol.get("state", "")))}
        return {**images, **(state if layout.state_dim else {}), "language": LANGUAGE}

    def cleanup(self) -> None:
        self._env.close()
