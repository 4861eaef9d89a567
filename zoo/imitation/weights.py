"""The weight of each recorded frame in fine-tuning: solved episodes alone, or every frame by its advantage.

`success` is filtered behaviour cloning, rejection sampling (RFT, arXiv:2308.01825; of VLAs Hi-ORS, arXiv:2510.26406).
`advantage` is the policy's step of advantage-weighted regression (AWR, arXiv:1910.00177, algorithm 1): exp(A / beta),
at most 20, of advantages normalised over all frames, as its authors' program does it. Three differences: the return is
the discounted one of the episode instead of TD(lambda)'s; its baseline is no critic's value, but the mean return of the
task's episodes at the same step; and weights are divided by their mean, so that a learning rate means the same with and
without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_gym.errors import BadValue
from zoo.config.algorithm_configs import FrameWeight
from zoo.demonstrations.lerobot_reader import check_dataset
from zoo.demonstrations.recorder import REWARD, SUCCESS, Demonstration

LARGEST_WEIGHT = 20.0
"""Before weights are divided by their mean. AWR's program."""
_SMALLEST_STD = 1e-5
"""Added to the standard deviation of advantages, as AWR's program does."""


class NothingToWeigh(BadValue):
    """Raised where no frame is worth more than another: none was solved, or rewards tell none apart."""


def check_weighable(folder: Path, kind: FrameWeight) -> None:
    """Raise `BadValue` where a dataset cannot be read, or lacks the columns that weights follow from."""
    needed = {"none": (), "success": (SUCCESS,), "advantage": (REWARD, SUCCESS)}[kind]
    if not check_dataset(folder).features.keys() & set(needed) and needed:
        raise BadValue(
            f"'{folder}' has no column {' or '.join(map(repr, needed))}, which weight {kind} follows from; weight none "
            "learns every frame alike"
        )


def weighed(
    episodes: Sequence[Demonstration], kind: FrameWeight, *, beta: float, gamma: float
) -> tuple[list[Demonstration], list[np.ndarray] | None]:
    """Return the episodes to learn and the weights of their frames, float64 `[T]` each of mean 1; None = all 1.

    They were read with `read_dataset(outcomes=True)`. Raise `NothingToWeigh`.
    """
    if kind == "none":
        return list(episodes), None
    if kind == "success":
        solved = [episode for episode in episodes if episode.extra[SUCCESS].any()]
        if not solved:
            raise NothingToWeigh(
                f"none of the {len(episodes)} episodes was solved, and weight success learns solved ones alone; add "
                "episodes that were, or use weight advantage with rewards that tell the others apart"
            )
        return solved, None
    returns = [discounted_returns(_reward_T(episode), gamma) for episode in episodes]
    advantages = advantages_of(returns, [episode.instruction for episode in episodes])
    advantage_F = np.concatenate(advantages)
    if advantage_F.std() < _SMALLEST_STD:
        raise NothingToWeigh(
            f"the rewards of the {len(episodes)} episodes tell no frame apart, which weight advantage needs: a frame's "
            "return is compared with those of episodes with the same sentence; weight none learns every frame alike"
        )
    weight_F = advantage_weights(advantage_F, beta)
    return list(episodes), np.split(weight_F, np.cumsum([len(return_T) for return_T in returns])[:-1])


def discounted_returns(reward_T: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted sum of the rewards from each step to the end, float64 `[T]`."""
    return_T = np.zeros(len(reward_T))
    later = 0.0
    for step in reversed(range(len(reward_T))):
        later = return_T[step] = float(reward_T[step]) + gamma * later
    return return_T


def advantages_of(returns: Sequence[np.ndarray], tasks: Sequence[str]) -> list[np.ndarray]:
    """Return each episode's returns `[T]` less the mean return of its task's episodes at the same step, `[T]`.

    An episode that has ended counts with its last return. So the steps that only unsolved episodes reach, because the
    solved ones are over, are worse than the mean, and not as good as each other.
    """
    found: dict[str, np.ndarray] = {}
    for task in dict.fromkeys(tasks):
        own = [return_T for return_T, of in zip(returns, tasks, strict=True) if of == task]
        longest = max(len(return_T) for return_T in own)
        found[task] = np.mean([np.pad(return_T, (0, longest - len(return_T)), mode="edge") for return_T in own], axis=0)
    return [return_T - found[task][: len(return_T)] for return_T, task in zip(returns, tasks, strict=True)]


def advantage_weights(advantage_F: np.ndarray, beta: float) -> np.ndarray:
    """Return min(exp(A' / beta), 20) over its mean, float64 `[F]`; A' is the normalised advantage of F frames."""
    scaled_F = (advantage_F - advantage_F.mean()) / (advantage_F.std() + _SMALLEST_STD) / beta
    weight_F = np.exp(np.minimum(scaled_F, math.log(LARGEST_WEIGHT)))
    return np.asarray(weight_F / weight_F.mean())


def _reward_T(episode: Demonstration) -> np.ndarray:
    """Return the recorded rewards; without them 1 where the task was solved first."""
    if REWARD in episode.extra:
        return episode.extra[REWARD]
    solved_T = episode.extra[SUCCESS]
    return solved_T & (np.cumsum(solved_T) == 1)
