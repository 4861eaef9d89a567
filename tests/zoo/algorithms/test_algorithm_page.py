"""The page on the algorithms names every option, every number that is logged and every alarm."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.algorithms.test_grpo import toy
from tests.zoo.algorithms.test_ppo import scripted
from vla_policies.actions.flow import FlowSettings
from vla_policies.openvla.config import Settings
from vla_policies.vlm_flow_config import FlowLearning
from zoo.algorithms import training_warnings as alarms
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.run_config import OptimizerOptions, PolicyOptions, known_settings
from zoo.config.settings import annotations_of
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluation_metrics
from zoo.train import parser

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
PUBLISHED = {
    *(f"train/actor/{name}" for name in ("policy_loss", "policy_loss_abs", "ratio", "ratio_abs", "clipped_ratio")),
    *(f"train/actor/{name}" for name in ("dual_cliped_ratio", "approx_kl", "clip_fraction", "grad_norm", "lr")),
    *("train/actor/entropy_loss", "train/entropy_loss", "train/actor/total_loss", "train/loss"),
    *(f"train/critic/{name}" for name in ("value_loss", "value_clip_ratio", "explained_variance", "lr")),
    "rollout/rewards",
    *(f"rollout/{name}_{end}" for name in ("advantages", "returns") for end in ("mean", "max", "min")),
    *(f"{side}/{name}" for side in ("env", "eval") for name in ("success_once", "fail_once", "return", "reward")),
    *(f"{side}/{name}" for side in ("env", "eval") for name in ("success_at_end", "fail_at_end", "episode_len")),
    *("env/num_trajectories", "eval/num_trajectories"),
    *(f"time/{name}" for name in ("step", "sync_weights", "generate_rollouts", "cal_adv_and_returns")),
    *("time/actor_training", "time/env/*", "time/rollout/*", "time/actor/*"),
    *(f"train/actor/{name}" for name in ("proximal_ratio", "clipped_proximal_ratio", "proximal_approx_kl")),
    *(f"train/actor/{name}" for name in ("behav_clip_fraction", "behav_approx_kl", "dual_clip_fraction")),
    *("train/actor/average_version", "train/actor/current_version"),
    *("rollout/data_staleness_{d}/ratio", "rollout/discarded_unused_trajs"),
    # Older pages:
    *(f"actor/{name}" for name in ("loss", "value_loss", "entropy", "grad_norm", "lr", "pg_clipfrac")),
    *(f"rollout/{name}" for name in ("reward_mean", "reward_std", "episode_length", "success_rate")),
    *("env/success_rate", "env/step_reward", "env/termination_rate"),
}
"""RLinf's metric names: what its code logs at a3816b5, its asynchronous trainer's, and those of its older pages."""
WITH_PROCESSES = {
    *("rollout/policy_version", "rollout/staleness", "placement/weights_mb", "time/<phase>_seconds"),
    *("train/actor/behav_approx_kl", "train/actor/behav_clip_fraction"),
}
"""Keys of runs that are spread over processes."""


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def keys(cell: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", cell) if "/" in name]


def phase(key: str) -> str:
    return re.sub(r"^time/(?!iteration)\w+_(seconds|fraction)$", r"time/<phase>_\1", key)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_option_is_explained(algo: str) -> None:
    missing = set(annotations_of(ALGORITHMS[algo])) - NAMED
    assert not missing, f"add a row to docs/algorithms.md for {sorted(missing)}"


def logged(model: Any) -> set[str]:
    model.learn(1)
    row = model.logger.output_formats[0].rows[-1]
    return {phase(key) for key in row} - SB3


@pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")
def test_every_number_is_explained() -> None:
    ppo = logged(scripted(clip_range_vf=0.2, dual_clip=3.0))
    grpo = logged(toy(resample_dead_groups=1, start_sampling="learnability"))
    assert len(ppo | grpo) > 40
    missing = (ppo | grpo) - NAMED
    assert not missing, f"add a row to docs/algorithms.md for {sorted(missing)}"
    explained = {key for row in rows_of("What is logged") for key in keys(row[0])}
    evaluated = set(
        evaluation_metrics(
            [EpisodeRecord(task_id=0, success_once=True, success_at_end=True, total_reward=1.0, length=2)]
        )
    )
    asked_for = {"train/actor/ref_kl", "train/actor/bc_loss", "train/critic/warmup", "train/critic/value_loss_fitted"}
    conditional = WITH_PROCESSES | evaluated | asked_for
    assert explained - (ppo | grpo) <= conditional, "not logged (any more)"


def test_every_published_name_is_logged_or_mapped_with_sign_and_unit() -> None:
    rows = rows_of("The names of published dashboards")
    there = [name for row in rows for name in keys(row[0])]
    assert sorted(there) == sorted(PUBLISHED)
    explained = {key for row in rows_of("What is logged") for key in keys(row[0])}
    for published, here, unit in rows:
        same = here.startswith("the same")
        wanted = keys(published) if same else keys(here)
        assert wanted, f"{published} is neither logged nor mapped"
        assert {phase(key) for key in wanted} <= explained
        assert len(unit) > 3


def test_every_key_of_rlinf_s_files_is_mapped_to_settings_that_exist() -> None:
    known = {name for algo in ALGORITHMS for name in known_settings(algo)}
    known |= {*annotations_of(PolicyOptions), *annotations_of(OptimizerOptions)}
    for kind in (Settings, FlowSettings, FlowLearning):
        known |= {field.name for field in dataclasses.fields(kind)}
    known |= {"lora"} | {flag for action in parser()._actions for flag in action.option_strings}
    rows = [(*(re.findall(r"`([^`]+)`", cell) for cell in row[:2]), row[2]) for row in rows_of("Config keys of RLinf")]
    assert len(rows) > 40
    for theirs, here, note in rows:
        assert {name.split(".")[0] for name in theirs} <= {"algorithm", "env", "actor", "rollout", "runner", "cluster"}
        assert set(here) <= known, here
        assert here or note.startswith("nothing to set")
    mapped = [name for theirs, _, _ in rows for name in theirs]
    assert len(mapped) == len(set(mapped))


def test_every_alarm_is_explained() -> None:
    names = set(re.findall(r'found\["(\w+)"\]', inspect.getsource(alarms)))
    assert len(names) >= 9
    assert names - NAMED == set()
