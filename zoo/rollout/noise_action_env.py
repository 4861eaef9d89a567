"""`NoiseActionVecEnv`: the noise a frozen flow policy begins at becomes the action, for any algorithm of SB3 (DSRL).

Source: Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning"
(arXiv:2506.15799), DSRL-SAC, and the authors' code for pi0.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from vla_gym.errors import BadValue
from vla_gym.observation import encode_instruction
from vla_policies.conventions import check_spaces
from vla_policies.policy import VLAPolicy
from vla_policies.steering.steering import SeenByFlow

Reward = Literal["step_cost", "environment"]
REWARDS: tuple[Reward, ...] = ("step_cost", "environment")


class NoiseActionVecEnv(VecEnvWrapper):
    """A `VecEnv` of `VLAVectorEnv.as_sb3()` in which an action is noise, and the policy turns it into a chunk.

    Action: float32 `[D]` in [-bound, bound], D the numbers per action of the flow network, the same noise for each of
    the H actions it predicts; with `repeat=False` float32 `[H * D]`. Observation: float32 `[E + S]`, the flow head's
    mean hidden state at t = 1 and x = 0, and the proprioception. The policy's weights do not change.

    :param policy: of a flow family: pi0, pi05, smolvla, nano-flow. Observes and acts as the environment does; images
        of another size are scaled to its own.
    :param bound: largest size of each number of noise, b_W: 1 for pi0 in the authors' code. Beyond about 2 the policy
        has hardly been trained.
    :param repeat: one noise for all H actions, as the authors do for pi0.
    :param reward: "step_cost" is -1 for each decision and 0 for the one that solves the task, the authors' choice;
        "environment" leaves the environment's.
    """

    def __init__(
        self,
        venv: VecEnv,
        policy: VLAPolicy,
        *,
        bound: float = 1.0,
        repeat: bool = True,
        reward: Reward = "step_cost",
    ) -> None:
        if not isinstance(venv, VecEnv):
            raise BadValue(f"{type(venv).__name__} is no VecEnv of Stable-Baselines3; give its view, envs.as_sb3()")
        check_spaces(policy.conventions, venv.observation_space, venv.action_space)
        if not bound > 0:
            raise BadValue(f"bound must be above 0, got {bound}; 1 is usual")
        if reward not in REWARDS:
            raise BadValue(f"reward must be one of {', '.join(REWARDS)}, got '{reward}'")
        self.policy = policy
        self.repeat = repeat
        self.reward = reward
        policy.set_training_mode(False)
        made_up = {
            key: np.zeros((1, *space.shape), space.dtype)
            for key, space in venv.observation_space.spaces.items()  # type: ignore[attr-defined]
        }
        made_up["instruction"][0] = encode_instruction("go")
        num_features = self._encode(made_up).feature_BE.shape[1]
        backbone: Any = policy.backbone
        width = backbone.flow_width * (1 if repeat else backbone.horizon)
        self._latest: SeenByFlow | None = None
        self._return_N = np.zeros(venv.num_envs)
        super().__init__(
            venv,
            observation_space=spaces.Box(-np.inf, np.inf, (num_features,), np.float32),
            action_space=spaces.Box(-bound, bound, (width,), np.float32),
        )

    def reset(self) -> np.ndarray:
        """Begin an episode in every environment; observations `[N, E + S]`."""
        self._return_N[:] = 0.0
        return self._remember(self.venv.reset())

    def step_async(self, actions: np.ndarray) -> None:
        """Denoise `[N, D]` (or `[N, H * D]`) from the latest observation, and start the chunks."""
        self.venv.step_async(self.chunks(actions))

    def step_wait(self) -> VecEnvStepReturn:
        """Observations, rewards, dones and infos.

        A `terminal_observation` is of this space, too, and `r` of `episode` sums the rewards of here.
        """
        obs, reward_N, done_N, infos = self.venv.step_wait()
        for env in np.flatnonzero(done_N):
            last = {key: value[None] for key, value in infos[env]["terminal_observation"].items()}
            infos[env]["terminal_observation"] = _numbers(self._encode(last))[0]
        if self.reward == "step_cost":
            solved_N = np.array([bool(info.get("is_success", False)) for info in infos])
            reward_N = np.where(solved_N & done_N, 0.0, -1.0).astype(np.float32)
        self._return_N += reward_N
        for env in np.flatnonzero(done_N):
            if "episode" in infos[env]:  # not of an episode that was lost with its worker
                infos[env]["episode"] = {**infos[env]["episode"], "r": float(self._return_N[env])}
            self._return_N[env] = 0.0
        return self._remember(obs), reward_N, done_N, infos

    @torch.no_grad()
    def chunks(self, noise_ND: np.ndarray) -> np.ndarray:
        """Environment actions `[N, K, A]` that the policy denoises from the noise at the latest observation."""
        assert self._latest is not None, "reset() comes first"
        noise_NW = torch.as_tensor(noise_ND, dtype=torch.float32, device=self.policy.device)
        action_NKA = self._latest.chunks(self.policy, noise_NW).cpu().numpy()
        space = self.venv.action_space
        assert isinstance(space, spaces.Box)
        return np.clip(action_NKA.reshape(-1, *space.shape), space.low, space.high)

    def _remember(self, obs: Any) -> np.ndarray:
        self._latest = self._encode(obs)
        return _numbers(self._latest)

    @torch.no_grad()
    def _encode(self, obs: Any) -> SeenByFlow:
        return SeenByFlow.of(self.policy, obs)


def _numbers(seen: SeenByFlow) -> np.ndarray:
    return np.asarray(seen.feature_BE.cpu().numpy())
