"""Q-chunking: a critic of whole chunks learns by temporal differences over decisions, and the best of N is played.

Source: Li, Zhou and Levine 2025, "Reinforcement Learning with Action Chunking" (arXiv:2507.07969), QC: eq. 6-8. The
policy only imitates; it improves because of its sampled chunks the critics choose, and because it may imitate those.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from vla_policies.actions.noise import SlotNoise
from vla_policies.steering import BestOfN, BestOfNConfig, critic_config
from zoo.config.algorithm_configs import QCConfig
from zoo.distributed.fsdp import check_learnable
from zoo.distributed.learner import Learner, Scorer
from zoo.imitation.loss import ImitationScorer
from zoo.off_policy.algorithm import STREAM, VLAOffPolicyAlgorithm
from zoo.off_policy.replay import Decisions, Replay
from zoo.rollout.stats import RolloutStats


def chunk_targets(batch: Decisions, next_value_B: Tensor, gamma: float) -> Tensor:
    """Return sum over i < h of gamma^i r_i + gamma^h V(next), `[B]`, h the executed steps of each chunk.

    Nothing follows an end by the task's own rule; a time limit is no such end (arXiv:2507.07969, eq. 7).
    """
    reward_B, discount_B = batch.discounted(gamma)
    return reward_B + discount_B * next_value_B


class CriticScorer(Scorer):
    """The critics' squared error of a batch, for a `Learner`."""

    def forward(self, batch: Decisions, target_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over critics and decisions, and the estimates `[E, B]`."""
        estimate_EB = self.policy(batch.obs, batch.action_BKA)
        return (estimate_EB - target_B).square().mean(), estimate_EB.detach()


class QC(VLAOffPolicyAlgorithm):
    """Q-chunking; the settings are those of `zoo.config.algorithm_configs.QCConfig`."""

    config_class = QCConfig
    config: QCConfig

    def build(self) -> None:
        config, policy = self.config, self.policy
        judged = critic_config(policy.conventions, policy.backbone, config.num_critics)
        steering = BestOfN(BestOfNConfig(critic=judged, num_samples=config.num_samples))
        steering.critic.begin_as(policy.backbone)
        policy.steer(steering.to(self.device))
        self.critic = steering.critic
        self.target = deepcopy(steering.critic).requires_grad_(requires_grad=False)
        self.networks = {"critic": self.critic, "target": self.target}
        self.networks["critic"].optimizer = optimizer = torch.optim.Adam(self.critic.parameters(), config.critic_lr)
        group = self.process_group.gradient_group
        self._critic_learner = Learner(CriticScorer(self.critic), optimizer, config.max_grad_norm, group=group)
        self._learner = None
        if config.imitate != "none":
            check_learnable(policy)
            scorer = ImitationScorer(policy)
            self._learner = Learner(scorer, policy.optimizer, config.max_grad_norm, group=group)

    def train(self, replay: Replay, stats: RolloutStats) -> None:
        config = self.config
        self.record({"rollout/replay": float(len(replay.rows()))})
        if self.process_group.any(len(replay.rows()) < max(1, config.learning_starts)):
            return
        logged: list[dict[str, float]] = []
        for _ in range(config.updates_of(stats.num_decisions)):
            batch = self.draw(replay)
            numbers = self.update_critic(batch)
            if self._learner is not None:
                numbers |= self.imitate(self._learner, batch, batch.obs, self._weights(batch))
            self._n_updates += 1
            logged.append(numbers)
        self.record({name: float(np.mean([one[name] for one in logged])) for name in logged[0]})

    def update_critic(self, batch: Decisions) -> dict[str, float]:
        """Take one step of the critics, and one of the targets towards them; return what to log."""
        learner = self._critic_learner
        target_B = chunk_targets(batch, self._next_value(batch), self.config.gamma)
        learner.zero_grad()
        with learner.accumulate(last=True):
            loss, estimate_EB = learner.score(batch, target_B)
            learner.backward(loss)
        norm, _ = learner.apply()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                old.lerp_(new, self.config.tau)
        names = ("td_loss", "q_mean", "target_mean", "grad_norm")
        values = (loss.detach(), estimate_EB.mean(), target_B.mean(), norm)
        return {f"train/critic/{name}": float(value) for name, value in zip(names, values, strict=True)}

    @torch.no_grad()
    def _next_value(self, batch: Decisions) -> Tensor:
        """Return the target critics' mean estimate of the chunk that would be played next, `[B]`."""
        action_NBKA = self._candidates(batch.next_obs, 0)
        best_BKA = self.critic.best(self.critic.encode(batch.next_obs), action_NBKA)
        value_B: Tensor = self.target(batch.next_obs, best_BKA).mean(dim=0)
        return value_B

    @torch.no_grad()
    def _weights(self, batch: Decisions) -> Tensor | None:
        """Return 2 for decisions whose estimate exceeds the mean over sampled chunks by the median or more, else 0."""
        if self.config.imitate == "all":
            return None
        encoded_BD = self.critic.encode(batch.obs)
        sampled_NB = self.critic.judge(encoded_BD, self._candidates(batch.obs, 1)).mean(dim=0)
        played_B = self.critic.judge(encoded_BD, batch.action_BKA[None])[:, 0].mean(dim=0)
        advantage_B = played_B - sampled_NB.mean(dim=0)
        return 2.0 * (advantage_B >= advantage_B.median()).float()

    def _candidates(self, obs: dict[str, Tensor], number: int) -> Tensor:
        slots = np.arange(len(obs["instruction"]))
        seed = self.noise_seed + STREAM + (1 + number << 66)
        noise = SlotNoise(seed, (self._n_updates, self.process_group.rank), slots)
        policy = self.policy
        return policy.backbone.candidates(policy.prepare(obs), policy.sampling, self.config.num_samples, noise)
