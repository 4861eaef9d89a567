"""The WidowX, against ManiSkill's own agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

sapien = pytest.importorskip("sapien")
pytestmark = pytest.mark.sim


def test_the_arm_moves_as_mani_skill_s_own(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same joints after the same actions as ManiSkill's agent and controller on its own scene."""
    pytest.importorskip("mani_skill")
    import torch
    from mani_skill.envs.scene import ManiSkillScene
    from mani_skill.envs.tasks.digital_twins.bridge_dataset_eval.base_env import (
        WidowX250SBridgeDatasetFlatTable,
    )
    from mani_skill.envs.utils.system.backend import parse_sim_and_render_backend

    from vla_gym.adapters.plate25.scene import START_QPOS, TIMESTEP, Arm, set_process_settings

    urdf = sample / "widowx" / "wx250s.urdf"
    monkeypatch.setattr(WidowX250SBridgeDatasetFlatTable, "urdf_path", str(urdf))
    set_process_settings()
    actions = np.random.default_rng(0).uniform(-0.03, 0.03, (6, 7))
    actions[:, 6] = [1, 1, -1, -1, 1, -1]

    def systems() -> list[Any]:
        return [sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device("cpu"))]

    scene = sapien.Scene(systems())
    scene.timestep = TIMESTEP
    arm = Arm(scene, urdf)
    arm.reset(START_QPOS)
    backend = parse_sim_and_render_backend("physx_cpu", "sapien_cpu")
    upstream_scene = ManiSkillScene([sapien.Scene(systems())], device=torch.device("cpu"), backend=backend)
    upstream_scene.timestep = TIMESTEP
    agent = WidowX250SBridgeDatasetFlatTable(
        upstream_scene, 5, initial_pose=sapien.Pose([0.127, 0.06, 0.85], [0, 0, 0, 1])
    )
    agent.robot.set_pose(sapien.Pose([0.147, 0.028, 0.870], [0, 0, 0, 1]))
    agent.reset(init_qpos=START_QPOS)
    agent.controller.reset()
    for action in actions:
        arm.set_action(action)
        agent.set_action(torch.tensor(action[None], dtype=torch.float32))
        for _ in range(100):
            scene.step()
            upstream_scene.step()
        np.testing.assert_allclose(arm.qpos(), agent.robot.get_qpos()[0].numpy(), atol=1e-5)
