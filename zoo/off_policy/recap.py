"""RECAP: a value function of the return, advantages binarised per task, and imitation under that indicator.

Source: Physical Intelligence 2025, "pi*0.6: a VLA That Learns From Experience" (arXiv:2511.14759). A round collects,
fits the values and learns all of the replay. Differences: each round goes on from the policy of the round before, not
from the first one, and the value network is of nano's size instead of a VLM's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_policies.steering import (
    NEGATIVE,
    POSITIVE,
    Conditioned,
    ConditionedConfig,
    ReturnModel,
    critic_config,
    with_suffix,
)
from zoo.config.algorithm_configs import RecapConfig
from zoo.distributed.fsdp import check_learnable
from zoo.distributed.learner import Learner, Scorer
from zoo.imitation.loss import ImitationScorer
from zoo.off_policy.algorithm import VLAOffPolicyAlgorithm
from zoo.off_policy.replay import Replay
from zoo.rollout.stats import RolloutStats

_logger = logging.getLogger(__name__)
_AT_ONCE = 256
"""Observations that are valued at once."""


def returns(replay: Replay, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of finished episodes and the return of each, float32: minus the steps to success over the
    horizon, -1 at least and where the episode was not solved (arXiv:2511.14759, eq. 5)."""
    columns, rows = replay.columns, replay.rows(targets=False)
    _, episode_F = np.unique(columns["episode"][rows], return_inverse=True)
    length_E, solved_E, ended_E = (np.zeros(len(rows), kind) for kind in (np.int64, bool, bool))
    np.maximum.at(length_E, episode_F, columns["elapsed"][rows] + columns["executed"][rows])
    np.logical_or.at(solved_E, episode_F, columns["solved"][rows])
    np.logical_or.at(ended_E, episode_F, columns["ends"][rows])
    left_F = (length_E[episode_F] - columns["elapsed"][rows]) / horizon
    return_F = np.where(solved_E[episode_F], np.maximum(-left_F, -1.0), -1.0).astype(np.float32)
    ended_F = ended_E[episode_F]
    return rows[ended_F], return_F[ended_F]


def ahead_of(replay: Replay, rows: np.ndarray, lookahead: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows `lookahead` simulator steps later, at a decision, and whether the episode is over by then."""
    columns, ahead_F, over_F = replay.columns, rows.copy(), np.zeros(len(rows), bool)
    for _ in range(-(-lookahead // replay.chunk)):
        over_F |= columns["ends"][ahead_F]
        ahead_F = np.where(over_F, ahead_F, columns["next"][ahead_F])
    return ahead_F, over_F


def positive(advantage_F: np.ndarray, sentence_FL: np.ndarray, taught_F: np.ndarray, share: float) -> np.ndarray:
    """Whether each advantage is among the highest `share` of those of its sentence's rollouts, bool `[F]`.

    Demonstrations are, as the interventions of arXiv:2511.14759 are.
    """
    found_F = taught_F.copy()
    _, task_F = np.unique(sentence_FL, axis=0, return_inverse=True)
    for task in range(task_F.max(initial=-1) + 1):
        own_F = (task_F.ravel() == task) & ~taught_F
        if own_F.any():
            found_F[own_F] = advantage_F[own_F] > np.quantile(advantage_F[own_F], 1.0 - share)
    return found_F


class ReturnScorer(Scorer):
    """The cross entropy of returns, for a `Learner`."""

    def forward(self, obs: dict[str, Tensor], return_B: Tensor) -> Tensor:
        """Return a scalar."""
        loss: Tensor = self.policy(obs, return_B)
        return loss


class RECAP(VLAOffPolicyAlgorithm):
    """RECAP; the settings are those of `zoo.config.algorithm_configs.RecapConfig`."""

    config_class = RecapConfig
    config: RecapConfig

    def build(self) -> None:
        config, policy = self.config, self.policy
        check_learnable(policy)
        values: Any = ReturnModel(critic_config(policy.conventions, policy.backbone, 1)).to(self.device)
        values.begin_as(policy.backbone)
        values.optimizer = optimizer = torch.optim.Adam(values.parameters(), config.critic_lr)
        self.values: ReturnModel = values
        self.networks = {"values": values}
        self.horizon = max(task.horizon for task in self.envs.benchmark.tasks)
        group = self.process_group.gradient_group
        self._value_learner = Learner(ReturnScorer(values), optimizer, config.max_grad_norm, group=group)
        self._learner = Learner(ImitationScorer(policy), policy.optimizer, config.max_grad_norm, group=group)

    def steer(self) -> None:
        if self._n_updates and self.config.indicator == "prompt":
            self.policy.steer(Conditioned(ConditionedConfig(guidance=self.config.guidance)))

    def train(self, replay: Replay, stats: RolloutStats) -> None:
        config = self.config
        rows, return_F = returns(replay, self.horizon)
        self.record({"rollout/replay": float(len(rows))})
        if self.process_group.any(not (return_F > -1.0).any()):
            _logger.info("no solved episode to learn from yet")
            return
        if config.label == "success":
            advantage_F, label_F = return_F, return_F > -1.0
        else:
            self.record({"train/critic/value_loss": self._fit(replay, rows, return_F)})
            advantage_F = self._advantages(replay, rows, return_F)
            taught_F = np.array(replay.columns["demonstration"][rows])
            sentence_FL = replay.columns["obs.instruction"][rows]
            label_F = positive(advantage_F, sentence_FL, taught_F, config.positive_share)
        is_positive = np.zeros(replay.size, bool)
        is_positive[rows] = label_F
        learned = rows[label_F] if config.indicator == "filter" else rows
        logged = []
        for rng, drawn in self._draws(replay, learned, config.updates):
            batch = replay.decisions(drawn, self.device)
            obs = batch.obs
            if config.indicator == "prompt":
                suffixes = np.where(is_positive[drawn], POSITIVE, NEGATIVE)
                suffixes[rng.random(len(drawn)) < config.indicator_dropout] = ""
                obs = {**obs, "instruction": with_suffix(obs["instruction"], suffixes.tolist())}
            logged.append(self.imitate(self._learner, batch, obs, None))
            self._n_updates += 1
        self.record({name: float(np.mean([one[name] for one in logged])) for name in logged[0]})
        self.record({"rollout/positive": float(label_F.mean()), "rollout/advantage_std": float(advantage_F.std())})

    def _draws(self, replay: Replay, rows: np.ndarray, num: int) -> Iterator[tuple[np.random.Generator, np.ndarray]]:
        """Yield a generator and the rows of each of `num` batches of this rank, drawn by the count of updates."""
        group, config = self.process_group, self.config
        for number in range(num):
            rng = np.random.default_rng([self.noise_seed, self._updates_done, number, group.rank, len(rows)])
            yield rng, replay.draw(rng, config.batch_size // group.size, config.demonstration_share, rows)

    def _fit(self, replay: Replay, rows: np.ndarray, return_F: np.ndarray) -> float:
        """Take the steps of the value network; return their mean loss."""
        known, losses, learner = np.zeros(replay.size, np.float32), [], self._value_learner
        known[rows] = return_F
        for _, drawn in self._draws(replay, rows, self.config.value_updates):
            learner.zero_grad()
            with learner.accumulate(last=True):
                return_B = torch.from_numpy(known[drawn]).to(self.device)
                loss = learner.score(replay.observations(drawn, self.device), return_B)
                learner.backward(loss)
            learner.apply()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def _advantages(self, replay: Replay, rows: np.ndarray, return_F: np.ndarray) -> np.ndarray:
        """Return the reward of the lookahead's steps plus the value after it, or the return, less the value."""
        elapsed = replay.columns["elapsed"]
        ahead_F, over_F = ahead_of(replay, rows, self.config.lookahead)
        value = np.zeros(replay.size, np.float32)
        valued = np.unique(np.concatenate([rows, ahead_F]))
        for part in np.array_split(valued, -(-len(valued) // _AT_ONCE)):
            value[part] = self.values.value(replay.observations(part, self.device)).cpu().numpy()
        later_F = value[ahead_F] - (elapsed[ahead_F] - elapsed[rows]) / self.horizon
        return np.asarray(np.where(over_F, return_F, later_F) - value[rows])
