"""What users give PPO and GRPO is checked before anything is built of it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from stable_baselines3.common.policies import ActorCriticPolicy

from tests.zoo.stand_ins import StandInPolicy
from vla_gym.errors import BadValue
from zoo import PPO
from zoo.algorithms.arguments import CHUNK_SETTINGS, check_plain_settings, constructor_settings, policy_class_of
from zoo.config.algorithm_configs import PPOConfig
from zoo.config.settings import defaults_of


def test_a_policy_is_a_class_or_an_alias() -> None:
    assert policy_class_of(StandInPolicy, PPO.policy_aliases) is StandInPolicy
    assert policy_class_of("MlpPolicy", PPO.policy_aliases) is ActorCriticPolicy


@pytest.mark.parametrize("policy", ["agents/sft/LIBERO-Goal/best", 3])
def test_a_policy_that_is_no_class_is_refused(policy: object) -> None:
    with pytest.raises(BadValue, match=r"policy must be .*VLAPolicy or a class, got .*'backbone': FOLDER"):
        policy_class_of(policy, PPO.policy_aliases)


def test_plain_policies_take_defaults_of_what_is_for_chunks() -> None:
    settings = {name: value for name, value in defaults_of(PPOConfig).items() if name in CHUNK_SETTINGS}
    check_plain_settings(settings)
    for name in CHUNK_SETTINGS:
        with pytest.raises(BadValue, match=f"^{name} is for policies with"):
            check_plain_settings({**settings, name: "other"})


def test_a_setting_of_our_own_is_checked() -> None:
    given = {**defaults_of(PPOConfig), "self": None, "_init_setup_model": True}
    assert constructor_settings(PPOConfig, given) == defaults_of(PPOConfig)
    with pytest.raises(BadValue, match=r"PPO: huber_delta"):
        constructor_settings(PPOConfig, {**given, "huber_delta": -0.5})


@pytest.mark.parametrize("damage", ["no zip", "another zip"])
def test_a_file_that_save_did_not_write_is_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_text("<html>")
    if damage == "another zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("weights", "")
    with pytest.raises(BadValue, match=r"model\.zip' is no model that save wrote"):
        PPO.load(path)
