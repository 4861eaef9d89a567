from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from vla_gym.errors import BadValue, UnknownName
from vla_gym.specs import ActionSpec
from vla_policies import Conventions, VLAPolicy

MakePolicy = Callable[..., VLAPolicy]
MakeObs = Callable[..., dict[str, np.ndarray]]


def test_temperature_reaches_the_distribution(make_policy: MakePolicy, make_obs: MakeObs) -> None:
    cold, hot = make_policy(temperature=0.5), make_policy(temperature=2.0)
    obs = make_obs(2)
    assert (
        cold.evaluate(obs, cold.act(obs).record).entropy_BKA < hot.evaluate(obs, hot.act(obs).record).entropy_BKA
    ).all()


def test_predict_squeezes_one_observation(policy: VLAPolicy, make_obs: MakeObs) -> None:
    obs = make_obs(3)
    many, state = policy.predict(obs, deterministic=True)
    assert state is None
    assert (many.shape, many.dtype) == ((3, 2, 4), np.float32)
    for row in range(3):
        single, _ = policy.predict({key: value[row] for key, value in obs.items()}, deterministic=True)
        assert single.shape == (2, 4)
        assert np.array_equal(single, many[row])


def test_sampling_follows_the_seed_and_varies(policy: VLAPolicy, make_obs: MakeObs) -> None:
    obs = make_obs(4)
    torch.manual_seed(3)
    first, second = policy.act(obs), policy.act(obs)
    torch.manual_seed(3)
    assert torch.equal(policy.act(obs).action_BKA, first.action_BKA)
    assert not torch.equal(first.action_BKA, second.action_BKA)
    assert torch.equal(policy.act(obs, deterministic=True).action_BKA, policy.act(obs, True).action_BKA)


def test_one_action_without_chunk(conventions: Conventions, make_obs: MakeObs) -> None:
    flat = spaces.Box(-1.0, 1.0, (4,), np.float32)
    policy = VLAPolicy(conventions.observation_space(), flat, lambda _: 1e-3, backbone_kwargs={"size": "tiny"})
    assert policy.conventions.chunk == 1
    assert policy.predict(make_obs(3))[0].shape == (3, 4)
    assert policy(policy.obs_to_tensor(make_obs(3))[0])[0].shape == (3, 4)


def test_the_value_head_may_have_its_own_rate(make_policy: MakePolicy) -> None:
    policy = make_policy(value_lr=5e-3)
    groups = {group["name"]: group for group in policy.optimizer.param_groups}
    assert groups["value_head"]["lr_scale"] == pytest.approx(5.0)
    assert {id(p) for p in groups["value_head"]["params"]} == {id(p) for p in policy.backbone.value_parameters()}
    in_groups = sum(len(group["params"]) for group in policy.optimizer.param_groups)
    assert in_groups == len(list(policy.parameters()))


def test_the_action_spec_travels(make_policy: MakePolicy, tmp_path: Path) -> None:
    spec = ActionSpec(rotation="none", gripper="none", frame="delta")
    make_policy(action_spec=spec).save_pretrained(tmp_path)
    assert VLAPolicy.from_pretrained(tmp_path).conventions.action_spec == spec


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"backbone": "nanoo"}, UnknownName, "no policy 'nanoo'.*Did you mean 'nano'"),
        ({"backbone_kwargs": {"sise": "tiny"}}, UnknownName, "'sise'"),
        ({"backbone_kwargs": {"cameras": ["front"]}}, BadValue, "front"),
        ({"use_sde": True}, BadValue, "use_sde"),
        ({"value_lr": 1e-3, "optimizer_class": torch.optim.SGD}, BadValue, "GroupScaledAdamW"),
        ({"optimizer_kwargs": {"muon": True}, "optimizer_class": torch.optim.AdamW}, BadValue, "GroupScaledAdamW"),
        ({"value_lr": -1e-3}, BadValue, r"value_lr of VLAPolicy must be above 0, got -0\.001"),
        ({"temperature": "1"}, BadValue, "temperature of VLAPolicy must be a number, got '1'"),
        ({"backbone_kwargs": "tiny"}, BadValue, "backbone_kwargs must be a mapping, got 'tiny'"),
        ({"backbone_kwargs": {"width": 96.0}}, BadValue, "width of backbone_kwargs of nano"),
        ({"backbone_kwargs": {"cameras": "image"}}, BadValue, "cameras of backbone_kwargs"),
    ],
)
def test_wrong_arguments_are_named(
    make_policy: MakePolicy, settings: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_policy(**settings)


def test_bare_arrays_raise(policy: VLAPolicy) -> None:
    with pytest.raises(BadValue, match="an observation is a dict"):
        policy.predict(np.zeros(3))


@pytest.mark.parametrize(
    ("backbone", "options", "deterministic", "words"),
    [
        ("nano", {"greedy": "mean"}, True, "deterministic actions (nearest the mean)"),
        ("nano", {"temperature": 0.4}, False, "actions sampled at temperature 0.4"),
        ("nano", {"top_k": 5}, False, "actions sampled at temperature 1 among the top 5"),
        ("nano-flow", {}, True, "deterministic actions in 4 denoising steps from fixed noise"),
    ],
)
def test_a_policy_says_in_words_how_it_decides(
    make_policy: MakePolicy, backbone: str, options: dict[str, Any], deterministic: bool, words: str
) -> None:
    policy = make_policy(backbone=backbone, backbone_kwargs={"size": "tiny"}, **options)
    assert policy.action_selection_text(deterministic=deterministic) == words
