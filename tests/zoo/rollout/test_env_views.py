"""Environments in every form that Stable-Baselines3's users give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward
from stable_baselines3.common.vec_env import (
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from zoo.rollout.env_views import check_share, chunk_view, plain_view, vector_view

import vla_gym
from vla_gym.errors import BadValue, UnknownName
from vla_gym.vector.sb3 import SB3VecEnv
from zoo import PPO
from zoo.distributed.process_group import ProcessGroup

TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
FORMS: dict[str, Callable[[], Any]] = {
    "made by Gymnasium": lambda: gym.make("vla_gym/Toy-Reach-v0", chunk=4),
    "without a checker": lambda: gym.make("vla_gym/Toy-Reach-v0", chunk=4, disable_env_checker=True),
    "bare": lambda: gym.make("vla_gym/Toy-Reach-v0", chunk=4).unwrapped,
    "Gymnasium's name": lambda: "vla_gym/Toy-Reach-v0",
    "a task of it": lambda: "vla_gym/Toy-Reach.1-v0",
    "our name": lambda: "Toy-Reach",
    "vectors": lambda: vla_gym.make_vec("Toy-Reach", chunk=4),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains(form: str) -> None:
    model = PPO("VLAPolicy", FORMS[form](), n_steps=4, batch_size=4, n_epochs=1, policy_kwargs=TINY, device="cpu")
    assert isinstance(model.env, SB3VecEnv)
    model.learn(1)
    assert model.num_timesteps >= 4
    model.env.close()


@pytest.mark.parametrize("form", [form for form in FORMS if form != "our name"])
def test_plain_networks_see_channels_first(form: str) -> None:
    envs = plain_view(FORMS[form]())
    assert isinstance(envs, VecTransposeImage)
    assert envs.observation_space["image"].shape[0] == 3
    envs.close()


def test_plain_networks_see_channels_first_through_wrappers() -> None:
    view = vla_gym.make_vec("Toy-Reach", image_size=36).as_sb3()
    stacked = plain_view(VecFrameStack(view, 2))
    assert stacked.observation_space["image"].shape == (6, 36, 36)
    transposed = VecNormalize(VecTransposeImage(view), norm_obs=False)
    assert plain_view(transposed) is transposed
    assert plain_view(VecExtractDictObs(view, "state")).observation_space.shape == (2,)
    PPO("MultiInputPolicy", VecFrameStack(view, 2), n_steps=8, batch_size=8, n_epochs=1, device="cpu").learn(8)


def test_a_model_takes_another_environment_in_any_form() -> None:
    model = PPO("VLAPolicy", "Toy-Reach", n_steps=4, batch_size=4, n_epochs=1, policy_kwargs=TINY, device="cpu")
    first = model.env
    model.set_env(gym.make("vla_gym/Toy-Reach-v0"))
    assert isinstance(model.env, SB3VecEnv)
    assert model.env is not first
    model.learn(1)


@pytest.mark.filterwarnings("ignore:The `render_mode` attribute")
def test_wrappers_around_what_is_no_view_are_refused() -> None:
    with pytest.raises(BadValue, match=r"VecMonitor.*as_sb3\(\)"):
        vector_view(VecMonitor(VecMonitor(vla_gym.make_vec("Toy-Reach"))))


def test_other_environments_are_left_alone() -> None:
    other = gym.make("CartPole-v1")
    for view in (chunk_view, plain_view, vector_view):
        assert view(other) is other
        assert view("CartPole-v1") == "CartPole-v1"
        assert view(None) is None
    assert plain_view("CartPole-v9") == "CartPole-v9"


def test_a_name_nobody_has_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'Toy-Reach'"):
        PPO("VLAPolicy", "Toy-Reech", policy_kwargs=TINY)


def test_a_wrapper_is_not_lost_in_silence() -> None:
    env = TransformReward(gym.make("vla_gym/Toy-Reach-v0"), lambda reward: np.float64(2.0 * float(reward)))
    with pytest.raises(BadValue, match=r"TransformReward .* would be lost: give vla_gym\.make_vec\('Toy-Reach'"):
        PPO("VLAPolicy", env, policy_kwargs=TINY)
    env.close()


def test_two_ranks_with_the_same_environments_are_refused() -> None:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=4, group_size=2)
    check_share(envs, ProcessGroup())
    check_share(envs, ProcessGroup(0, 2))
    with pytest.raises(BadValue, match=r"rank 1 of 2 has .* from group 0 on.*group_offset=2, num_groups=4"):
        check_share(envs, ProcessGroup(1, 2))
    check_share(vla_gym.make_vec("Toy-Reach", num_envs=4, group_size=2, group_offset=2), ProcessGroup(1, 2))


def test_the_share_is_checked_before_anything_is_collected() -> None:
    model = PPO("VLAPolicy", "Toy-Reach", n_steps=4, batch_size=4, n_epochs=1, policy_kwargs=TINY, device="cpu")
    model.process_group = ProcessGroup(1, 2)
    with pytest.raises(BadValue, match="which are another rank's"):
        model.learn(1)
