from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from vla_gym.adapters.toy import COLOURS
from vla_gym.plugins.lerobot_env import LeRobotEnv

PLUGIN = "vla_gym.plugins.lerobot"
NAMES = "image", "image2"

TINY_POLICY = """
import sys
import torch
from lerobot.configs.types import FeatureType
from lerobot.envs.utils import env_to_policy_features
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors
from vla_gym.plugins.lerobot import VLAGymEnv

features = env_to_policy_features(VLAGymEnv(task="Toy-Reach"))
inputs, outputs = {}, {}
for name, feature in features.items():
    (outputs if feature.type is FeatureType.ACTION else inputs)[name] = feature
config = ACTConfig(
    input_features=inputs, output_features=outputs, chunk_size=4, n_action_steps=4, dim_model=32, n_heads=2,
    dim_feedforward=64, n_encoder_layers=1, use_vae=False, pretrained_backbone_weights=None, device="cpu",
    push_to_hub=False,
)
shapes = {name: (3, 1, 1) if f.type is FeatureType.VISUAL else f.shape for name, f in features.items()}
stats = {name: {"mean": torch.zeros(shape), "std": torch.ones(shape)} for name, shape in shapes.items()}
for part in (ACTPolicy(config), *make_pre_post_processors(policy_cfg=config, dataset_stats=stats)):
    part.save_pretrained(sys.argv[1])
"""


def towards(image: np.ndarray, colour: str) -> np.ndarray:
    """Action from the gripper to a block, read from the image."""
    places = [np.argwhere((image == rgb).all(-1)).mean(0)[::-1] for rgb in ((20, 20, 20), COLOURS[colour])]
    offset = places[1] - places[0]
    return (offset / np.abs(offset).max()).astype(np.float32)


def test_consecutive_seeds_play_every_start_state_and_success_is_in_the_info() -> None:
    env = LeRobotEnv("Toy-Reach")
    assert env._max_episode_steps == 12
    begun = []
    for seed in range(150, 156):
        obs, info = env.reset(seed=seed)
        assert obs in env.observation_space
        assert info == {"is_success": False, "task": env.task}
        begun.append((env.task_description, obs["agent_pos"].tobytes()))
    # 150 start states of three tasks: seed 150 is the first again, 151 the second task's first.
    assert [text.split()[2] for text, _ in begun] == ["red", "green", "blue"] * 2
    assert len(set(begun)) == 6
    again, _ = env.reset(seed=0)
    assert begun[0] == ("reach the red block", again["agent_pos"].tobytes())
    for _ in range(12):
        obs, reward, terminated, truncated, info = env.step(towards(obs["pixels"]["image"], "red"))
        if terminated or truncated:
            break
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)
    frame = env.render()
    assert frame is not None
    assert (frame == obs["pixels"]["image"]).all()
    env.close()


@pytest.mark.sim
@pytest.mark.parametrize(
    ("env_id", "limit", "images", "state"),
    [("LIBERO-Goal/1", 300, (360, *NAMES), 8), ("MetaWorld/reach", 500, (480,), 4)],
)
def test_lerobots_own_sizes_and_horizons(env_id: str, limit: int, images: tuple, state: int) -> None:
    pytest.importorskip({"L": "robosuite", "M": "metaworld"}[env_id[0]])
    env = LeRobotEnv(env_id)
    space, (size, *names) = env.observation_space, images
    assert env._max_episode_steps == limit
    assert space["agent_pos"].shape == (state,)
    pixels = space["pixels"]
    assert {(name, pixels[name].shape) for name in names} == {(name, (size, size, 3)) for name in names}
    assert names or pixels.shape == (size, size, 3)
    env.close()


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("lerobot") is None, reason="lerobot has an environment of its own")
def test_lerobot_eval_plays_a_policy_of_its_own(tmp_path: Path) -> None:
    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr + done.stdout

    run("-c", TINY_POLICY, "policy")
    flags = [f"--env.discover_packages_path={PLUGIN}", "--env.type=vla_gym", "--env.task=Toy-Reach"]
    flags += ["--env.env_kwargs={max_episode_steps: 5}", "--policy.path=policy", "--policy.device=cpu"]
    run("-m", "lerobot.scripts.lerobot_eval", *flags, "--eval.n_episodes=4", "--eval.batch_size=2", "--output_dir=out")
    result = json.loads(Path(tmp_path, "out", "eval_info.json").read_text())
    # 0.4 plays a suite as one vector environment, 0.6 a task at a time.
    assert result["overall"]["n_episodes"] == 4 * len(result["per_task"])
    assert len(result["per_task"]) in (1, 3)
