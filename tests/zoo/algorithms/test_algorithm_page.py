"""The page on the algorithms names every option, every number that is logged and every alarm."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.algorithms.test_grpo import toy
from tests.zoo.algorithms.test_ppo import scripted
from zoo.algorithms import training_warnings as alarms
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.settings import annotations_of

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`]+)`", PAGE))
SB3 = {
    *(
        "train/approx_kl",
        "train/clip_fraction",
        "train/clip_range",
        "train/clip_range_vf",
        "train/entropy_loss",
    ),
    *("train/explained_variance", "train/learning_rate", "train/n_updates", "train/policy_gradient_loss"),
    *("train/value_loss", "rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/success_rate"),
    *("time/fps", "time/iterations", "time/time_elapsed", "time/total_timesteps"),
}
"""Keys that Stable-Baselines3 defines."""


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_option_is_explained(algo: str) -> None:
    missing = set(annotations_of(ALGORITHMS[algo])) - NAMED
    assert not missing, f"add a row to docs/algorithms.md for {sorted(missing)}"


def logged(model: Any) -> set[str]:
    model.learn(1)
    row = model.logger.output_formats[0].rows[-1]
    return {re.sub(r"^time/(?!iteration)\w+_(seconds|fraction)$", r"time/<phase>_\1", key) for key in row} - SB3


@pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")
def test_every_number_is_explained() -> None:
    ppo = logged(scripted(clip_range_vf=0.2, dual_clip=3.0))
    grpo = logged(toy(resample_dead_groups=1))
    assert len(ppo | grpo) > 40
    missing = (ppo | grpo) - NAMED
    assert not missing, f"add a row to docs/algorithms.md for {sorted(missing)}"


def test_every_alarm_is_explained() -> None:
    names = set(re.findall(r'found\["(\w+)"\]', inspect.getsource(alarms)))
    assert len(names) >= 9
    assert names - NAMED == set()
