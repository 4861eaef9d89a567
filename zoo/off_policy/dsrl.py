"""DSRL: the noise that a frozen flow policy begins at is the action of Stable-Baselines3's SAC.

Source: Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning"
(arXiv:2506.15799), DSRL-SAC, and the authors' code for pi0. The observation is the flow head's mean hidden state and
the proprioception, where the authors have a convolutional network over the image.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

from vla_gym.errors import BadValue
from vla_gym.observation import ObservationLayout, encode_instructions
from vla_policies.steering import NoiseActor, NoiseActorConfig, SeenByFlow
from zoo.config.algorithm_configs import DSRLConfig
from zoo.off_policy.algorithm import VLAOffPolicyAlgorithm
from zoo.off_policy.replay import Replay
from zoo.rollout.buffer import Step
from zoo.rollout.stats import RolloutStats


class Temperature(nn.Module):
    """The logarithm of SAC's entropy coefficient, with its optimiser, as a checkpoint keeps networks."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.Adam([self.log], rate)


class DSRL(VLAOffPolicyAlgorithm):
    """DSRL; the settings are those of `zoo.config.algorithm_configs.DSRLConfig`."""

    config_class = DSRLConfig
    config: DSRLConfig

    def build(self) -> None:
        config, policy, backbone = self.config, self.policy, self.policy.backbone
        if self.process_group.size > 1:
            raise BadValue("dsrl learns in one process, as Stable-Baselines3's SAC does; start one")
        num_features = self._seen(self._made_up()).feature_BE.shape[1]
        flow: Any = backbone
        self._width = flow.flow_width * (1 if config.repeat else flow.horizon)
        self.sac = sac = SAC(
            "MlpPolicy",
            None,  # type: ignore[arg-type]
            learning_rate=self._rate,
            buffer_size=1,
            batch_size=config.batch_size,
            gamma=config.gamma,
            target_entropy=float(-self._width),
            device=self.device,
            _init_setup_model=False,
        )
        sac.observation_space = spaces.Box(-np.inf, np.inf, (num_features,), np.float32)
        sac.action_space = spaces.Box(-1.0, 1.0, (self._width,), np.float32)
        sac.n_envs = 1
        sac._setup_model()
        rate = self._rate(1.0)
        temperature = Temperature(rate).to(self.device)
        sac.log_ent_coef, sac.ent_coef_optimizer = temperature.log, temperature.optimizer
        self.networks = {
            "actor": sac.actor,
            "critic": sac.critic,
            "critic_target": sac.critic_target,
            "temperature": temperature,
        }
        layers = [layer for layer in sac.actor.latent_pi if isinstance(layer, nn.Linear)]
        sizes = (num_features, *(layer.out_features for layer in layers), self._width)
        actor = NoiseActor(NoiseActorConfig(sizes=sizes, bound=config.bound))
        actor.latent, actor.mean, actor.log_std = sac.actor.latent_pi, sac.actor.mu, sac.actor.log_std  # type: ignore[assignment]
        policy.set_training_mode(False)
        policy.steer(actor)

    def _made_up(self) -> dict[str, Any]:
        spaces_of: Any = self.env.observation_space
        made_up = {key: np.zeros((1, *space.shape), space.dtype) for key, space in spaces_of.spaces.items()}
        return encode_instructions({**made_up, "instruction": ("go",)})

    @torch.no_grad()
    def _seen(self, obs: Any) -> SeenByFlow:
        return SeenByFlow.of(self.policy, obs)

    def row_shape(self) -> tuple[ObservationLayout, int, int]:
        num_features: int = self.sac.observation_space.shape[0]  # type: ignore[index]
        return ObservationLayout(cameras=(), image_size=8, state_dim=num_features), 1, self._width

    def add(self, replay: Replay, step: Step) -> None:
        """Write the features of a decision in place of its images, its noise, and its reward."""
        outcome, record = step.outcome, step.sample.record
        reward_n = outcome.reward_n
        if self.config.reward == "step_cost":
            reward_n = np.where(outcome.success_n & step.done_n, 0.0, -1.0)
        last = self._seen(encode_instructions(outcome.obs)).feature_BE.cpu().numpy()
        rows = replace(outcome, obs={**outcome.obs, "state": last}, step_reward_nK=reward_n[:, None])
        sample = replace(step.sample, action_BKA=record["noise"][:, None] / self.config.bound)
        obs = {**step.obs, "state": record["feature"].numpy()}
        replay.add(replace(step, obs=obs, sample=sample, outcome=rows))

    def train(self, replay: Replay, stats: RolloutStats) -> None:
        config, sac = self.config, self.sac
        self.record({"rollout/replay": float(len(replay.rows()))})
        if len(replay.rows()) < max(1, config.learning_starts):
            return
        sac.set_logger(self.logger)
        sac.replay_buffer = _Batches(self, replay)  # type: ignore[assignment]
        sac._n_updates, sac._current_progress_remaining = self._n_updates, self._current_progress_remaining
        sac.train(config.updates_of(stats.num_decisions), config.batch_size)


class _Batches:
    """Batches of a replay, where SAC looks for Stable-Baselines3's buffer."""

    def __init__(self, algorithm: DSRL, replay: Replay) -> None:
        self._algorithm, self._replay = algorithm, replay

    def sample(self, batch_size: int, env: object = None) -> ReplayBufferSamples:
        """Return the batch of the next optimiser step; a time limit is no end."""
        batch = self._algorithm.draw(self._replay)
        self._algorithm._n_updates += 1
        return ReplayBufferSamples(
            observations=batch.obs["state"].to(self._algorithm.device),
            actions=batch.action_BKA[:, 0],
            next_observations=batch.next_obs["state"].to(self._algorithm.device),
            dones=(~batch.goes_on_B).float()[:, None],
            rewards=batch.reward_BK,
        )
