"""Our benchmarks as `--env.type=vla_gym` of lerobot-eval and lerobot-train (lerobot 0.4 to 0.6).

    lerobot-eval --env.discover_packages_path=vla_gym.plugins.lerobot --env.type=vla_gym --env.task=LIBERO-Goal ...

LeRobot imports this package, which registers the config with its `EnvConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.utils.constants import ACTION, OBS_IMAGE, OBS_IMAGES, OBS_STATE

from vla_gym.plugins.lerobot_env import LeRobotEnv

GYM_ID = "vla_gym/LeRobot-v0"
_KINDS = {ACTION: FeatureType.ACTION, "agent_pos": FeatureType.STATE}
_NAMES = {ACTION: ACTION, "agent_pos": OBS_STATE, "pixels": OBS_IMAGE}

# lerobot 0.4 makes it by this id, and looks for the instruction on what gymnasium.make returns: nothing wraps it.
if GYM_ID not in gym.registry:
    gym.register(GYM_ID, "vla_gym.plugins.lerobot_env:LeRobotEnv", order_enforce=False, disable_env_checker=True)


@EnvConfig.register_subclass("vla_gym")
@dataclass
class VLAGymEnv(EnvConfig):
    """An environment id of vla_gym."""

    task: str | None = "LIBERO-Spatial"
    """A suite, played task by task, or one task such as LIBERO-Spatial/3; `vla-zoo envs` lists them."""
    image_size: int | None = None
    """Side of the images, pixels; by default as LeRobot's own environment draws them."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """The benchmark's options, such as `{"protocol": "openvla-oft"}`."""

    def __post_init__(self) -> None:
        env = LeRobotEnv(**self.gym_kwargs)
        named = dict(env.observation_space)
        pixels = named.pop("pixels")
        several = isinstance(pixels, gym.spaces.Dict)
        images = {f"pixels/{name}": image for name, image in pixels.items()} if several else {"pixels": pixels}
        self.fps = env.metadata["render_fps"]
        for key, space in {ACTION: env.action_space, **named, **images}.items():
            self.features[key] = PolicyFeature(type=_KINDS.get(key, FeatureType.VISUAL), shape=space.shape)
            self.features_map[key] = _NAMES.get(key) or key.replace("pixels/", f"{OBS_IMAGES}.")

    @property
    def gym_id(self) -> str:
        """lerobot 0.4's way: the tasks of a suite take turns in one vector environment."""
        return GYM_ID

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Arguments of `LeRobotEnv`."""
        return {"env_id": self.task, "image_size": self.image_size, **self.env_kwargs}

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, gym.vector.VectorEnv]]:
        """lerobot 0.6's way: `{suite: {task: vector environment}}`, each started when its turn comes."""
        from lerobot.envs.utils import _LazyAsyncVectorEnv, freeze_after_episode_end

        benchmark = LeRobotEnv(**self.gym_kwargs).benchmark
        count, envs = len(benchmark.tasks), {}
        for number in range(count):
            task = f"{benchmark.id}/{number}" if count > 1 else benchmark.id
            fns = [partial(LeRobotEnv, **{**self.gym_kwargs, "env_id": task})] * n_envs
            envs[number] = (
                _LazyAsyncVectorEnv(fns)
                if use_async_envs and n_envs > 1
                else gym.vector.SyncVectorEnv(
                    [freeze_after_episode_end(fn) for fn in fns], autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP
                )
            )
        return {benchmark.id.replace("/", "-"): envs}
