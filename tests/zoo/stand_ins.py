"""A chunk policy and an environment small enough to work out by hand; a logger that remembers; configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import KVWriter
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env.base_vec_env import VecEnv
from torch import Tensor, nn

from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.types import ActionSample, Evaluation
from zoo.config.run_config import RunConfig
from zoo.evaluation.evaluator import EpisodeRecord

CHUNK, DIMS, BINS = 3, 2, 4
OBSERVATION = spaces.Dict({"image": spaces.Box(0, 255, (2, 2, 3), np.uint8)})
ACTION = spaces.Box(-1.0, 1.0, (CHUNK, DIMS), np.float32)


class StandInPolicy(ActorCriticPolicy):
    """Tokens from a table of logits, the same whatever is seen; the value is `scale` times the picture."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, **kwargs: Any) -> None:
        super(ActorCriticPolicy, self).__init__(observation_space, action_space)
        self.logits_KAV = nn.Parameter(torch.zeros(CHUNK, DIMS, BINS))
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=lr_schedule(1))

    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        value_B = self.predict_values(obs).flatten()
        log_probs = self.logits_KAV.log_softmax(-1).expand(len(value_B), -1, -1, -1)
        token_BKA = torch.distributions.Categorical(logits=log_probs).sample()
        return ActionSample(
            action_BKA=token_BKA.float() / BINS,
            logprob_BKA=log_probs.gather(-1, token_BKA[..., None])[..., 0].detach(),
            value_B=value_B.detach(),
            record={"token": token_BKA},
        )

    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        value_B = self.predict_values(obs).flatten()
        log_probs = self.logits_KAV.log_softmax(-1).expand(len(value_B), -1, -1, -1)
        return Evaluation(
            logprob_BKA=log_probs.gather(-1, record["token"][..., None])[..., 0],
            entropy_BKA=-(log_probs.exp() * log_probs).sum(-1),
            value_B=value_B,
        )

    def predict_values(self, obs: Any) -> Tensor:
        image = torch.as_tensor(np.asarray(obs["image"]) if not isinstance(obs["image"], Tensor) else obs["image"])
        return self.scale * image.float().flatten(1).mean(dim=1, keepdim=True)


class ScriptedVecEnv(VecEnv):
    """Each slot plays one script over and over: (reward, executed, how the decision ends) per decision.

    The picture after t decisions of an episode is filled with 10 * t; same-step resets.
    """

    def __init__(self, scripts: list[list[tuple[float, int, str]]]) -> None:
        self.scripts = scripts
        self.at = [0] * len(scripts)
        super().__init__(len(scripts), OBSERVATION, ACTION)

    def _obs(self) -> dict[str, np.ndarray]:
        return {"image": np.stack([np.full((2, 2, 3), 10 * at, dtype=np.uint8) for at in self.at])}

    def reset(self) -> dict[str, np.ndarray]:
        self.at = [0] * self.num_envs
        return self._obs()

    def step_async(self, actions: np.ndarray) -> None:
        assert actions.shape == (self.num_envs, CHUNK, DIMS)

    def step_wait(self) -> Any:
        rewards, dones, infos = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=bool), []
        for slot, script in enumerate(self.scripts):
            reward, executed, end = script[self.at[slot]]
            self.at[slot] += 1
            cut_off, lost = end in ("truncated", "lost"), end == "lost"
            info: dict[str, Any] = {"executed": executed, "TimeLimit.truncated": cut_off, "lost": lost}
            rewards[slot], dones[slot] = reward, end != "on"
            if dones[slot]:
                info["terminal_observation"] = {key: value[slot] for key, value in self._obs().items()}
                stats = {
                    "return": reward,
                    "length": 5,
                    "success_once": reward > 0,
                    "success_at_end": reward > 0,
                }
                info["episode"] = {**stats, "r": reward, "l": 5, "t": 0.0}
                info["is_success"] = reward > 0
                self.at[slot] = 0
            infos.append(info)
        return self._obs(), rewards, dones, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        pass

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Rows(KVWriter):
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        self.rows.append(dict(key_values))

    def write_sequence(self, sequence: list[str]) -> None:
        """Lines of text are not numbers."""

    def close(self) -> None:
        pass


def finished(total_reward: float, length: int, *, task_id: int = 0) -> EpisodeRecord:
    """A training episode that is solved where it has a reward."""
    solved = total_reward > 0
    return EpisodeRecord(
        task_id=task_id, success_once=solved, success_at_end=solved, total_reward=total_reward, length=length
    )


def toy_config(**settings: Any) -> RunConfig:
    """A run of Toy-Reach with these settings."""
    toy = {"algo": "ppo", "env": "Toy-Reach", "policy": "nano", "n_timesteps": 1, "num_envs": 1, "seed": 0}
    return RunConfig(**{**toy, **settings})
