"""Start states drawn by learnability: p (1 - p), p being the present policy's success rate from a start state.

A start state that is always or never solved teaches nothing: its groups have no variance (GRPO), and its returns no
surprise (PPO). p (1 - p) is the score of Sampling for Learnability (arXiv:2408.15099). There p comes from extra
rollouts on start states drawn at random; here from the training episodes themselves, older ones counting less.

Shape letters: P start states, task-major.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, shown
from zoo.evaluation.evaluator import EpisodeRecord

UNIFORM_SHARE = 0.25
"""Share of the draws that stay uniform."""
MEMORY = 20
"""Updates after which an episode counts 1/e."""
PRIOR_EPISODES = 2.0
"""Weight of the prior, in episodes: Beta(1, 1) of a task's rate, Beta(2 p, 2 - 2 p) of its start states', p the
task's rate."""


def success_rates(success_P: np.ndarray, episode_P: np.ndarray, task_P: np.ndarray) -> np.ndarray:
    """Posterior mean of each start state's success rate, float64 `[P]`, strictly between 0 and 1.

    `success_P`, `episode_P`: (discounted) counts; `task_P`: each start state's task, int, 0 to T - 1. A start state
    that was not played has its task's rate, so tasks alone are told apart where start states are too many to repeat.
    """
    success_T, episode_T = np.bincount(task_P, success_P), np.bincount(task_P, episode_P)
    rate_T = (success_T + PRIOR_EPISODES / 2) / (episode_T + PRIOR_EPISODES)
    rate_P: np.ndarray = (success_P + PRIOR_EPISODES * rate_T[task_P]) / (episode_P + PRIOR_EPISODES)
    return rate_P


def start_probabilities(rate_P: np.ndarray, uniform: float) -> np.ndarray:
    """Probability of each start state, float64 `[P]`: (1 - uniform) p (1 - p) / sum + uniform / P."""
    learnability_P = rate_P * (1 - rate_P)
    probability_P: np.ndarray = (1 - uniform) * learnability_P / learnability_P.sum() + uniform / len(rate_P)
    return probability_P


def effective_number(probability_P: np.ndarray) -> float:
    """exp(entropy): how many equally likely things would be as uncertain."""
    positive = probability_P[probability_P > 0]
    return float(np.exp(-(positive * np.log(positive)).sum()))


class StartSampler:
    """Success counts of the start states of a run, and what follows from them; the same on every rank."""

    def __init__(self, num_trials: Sequence[int], *, uniform: float = UNIFORM_SHARE, memory: float = MEMORY) -> None:
        """Take the number of start states of each task; `uniform` and `memory` as the constants."""
        self._first_T = np.concatenate([[0], np.cumsum(num_trials)[:-1]])
        self._task_P = np.repeat(np.arange(len(num_trials)), num_trials)
        self._uniform = uniform
        self._keep = float(np.exp(-1 / memory))
        self._episode_P = np.zeros(len(self._task_P))
        self._success_P = np.zeros(len(self._task_P))

    def count(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Count the episodes, of all ranks, that ended in one rollout; older ones then weigh exp(-1 / memory) less."""
        index_E, success_E = self._outcomes(episodes)
        self._episode_P = self._keep * self._episode_P + np.bincount(index_E, minlength=len(self._task_P))
        self._success_P = self._keep * self._success_P + np.bincount(index_E, success_E, minlength=len(self._task_P))

    def probabilities(self) -> np.ndarray:
        """Probability of each start state in the coming draws, float64 `[P]`."""
        return start_probabilities(success_rates(self._success_P, self._episode_P, self._task_P), self._uniform)

    def metrics(self, episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
        """`rollout/*` of the episodes of a rollout that was drawn with the present probabilities."""
        probability_P = self.probabilities()
        values = {
            "rollout/effective_starts": effective_number(probability_P),
            "rollout/effective_tasks": effective_number(np.bincount(self._task_P, probability_P)),
        }
        if episodes:
            index_E, success_E = self._outcomes(episodes)
            # Self-normalised importance sampling: the success rate at uniform weights.
            values["rollout/success_uniform"] = float(np.average(success_E, weights=1 / probability_P[index_E]))
        return values

    def to_json(self) -> dict[str, list[float]]:
        """The counts, for a checkpoint; `restore` gives the same to the bit."""
        return {"episodes": self._episode_P.tolist(), "successes": self._success_P.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `to_json()`; raises `BadValue` for what can be no counts of these start states."""
        try:
            episode_P, success_P = (np.asarray(state[key], dtype=np.float64) for key in ("episodes", "successes"))
            fits = episode_P.shape == success_P.shape == self._task_P.shape
            fits = fits and bool(((success_P >= 0) & (success_P <= episode_P)).all())  # not of nan
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise BadValue(
                f"starts must hold {len(self._task_P)} episodes and successes, one count per start state, and of none "
                f"more successes than episodes, got {shown(state)}"
            )
        self._episode_P, self._success_P = episode_P, success_P

    def _outcomes(self, episodes: Sequence[EpisodeRecord]) -> tuple[np.ndarray, np.ndarray]:
        """Index of each episode's start state, int64 `[E]`, and whether it was solved, float64 `[E]`."""
        index_E = [self._first_T[episode.task_id] + episode.trial_id for episode in episodes]
        return np.array(index_E, dtype=np.int64), np.array([episode.success_once for episode in episodes], dtype=float)
