"""Features of frozen parts, kept for the epochs of an update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import vla_gym
import zoo
from tests.vla_policies.conftest import tiny_policy, two_observations
from vla_gym.errors import BadValue
from vla_policies.modules.feature_cache import FeatureCache
from vla_policies.openvla.network import LANGUAGE_TARGETS
from vla_policies.registry import family_class

OTHERS = (pytest.param(name, marks=pytest.mark.thorough) for name in ("openvla", "pi05"))
FAMILIES = pytest.mark.parametrize("family", ["openvla-oft", "pi0", "smolvla", *OTHERS])


def counted(cache: FeatureCache, keys: str) -> list[int]:
    """The places that had to be made; the row of each is its place as one float32."""
    asked: list[int] = []

    def make(places: list[int]) -> tuple[Tensor]:
        asked.extend(places)
        return (torch.tensor([[float(place)] for place in places]),)

    (rows,) = cache.rows(keys, make)
    assert rows.shape == (len(keys), 1)
    return asked


def test_what_is_there_is_not_made_again() -> None:
    cache = FeatureCache(max_bytes=100)
    assert counted(cache, "ab") == [0, 1]
    assert counted(cache, "cbc") == [2]
    assert cache.num_bytes == 3 * 4


def test_the_longest_unused_go_first() -> None:
    cache = FeatureCache(max_bytes=8)  # two rows of 4 bytes
    counted(cache, "ab")
    counted(cache, "a")
    assert counted(cache, "c") == [0]
    assert cache.num_bytes == 8
    assert counted(cache, "ac") == []
    assert counted(cache, "b") == [0]


def test_a_row_does_not_keep_its_batch_alive() -> None:
    cache = FeatureCache(max_bytes=100)
    cache.rows("a", lambda _: (torch.zeros(50, 1)[:1],))
    assert cache._rows["a"][0].untyped_storage().nbytes() == 4


def test_shorter_rows_are_filled_up() -> None:
    cache = FeatureCache(max_bytes=100)
    cache.rows("a", lambda _: (torch.ones(1, 2, 1),))
    (rows,) = cache.rows("ab", lambda _: (torch.full((1, 2, 3), 2.0),))
    assert rows.tolist() == [[[1, 0, 0], [1, 0, 0]], [[2, 2, 2], [2, 2, 2]]]


def frozen(family: str) -> dict[str, Any]:
    """The options that leave the eyes of a family frozen."""
    if family.startswith("openvla"):
        return {"lora": {"rank": 2, "targets": LANGUAGE_TARGETS}}
    return {"train_expert_only": True}


@FAMILIES
def test_acting_and_learning_give_the_same_numbers_with_it(family: str) -> None:
    plain = tiny_policy(family, {**frozen(family), "cache_features": 0.0})
    keeping = tiny_policy(family, {**frozen(family), "cache_features": 0.01})
    obs = two_observations()
    for _ in range(2):  # the second time from what was kept
        samples = []
        for policy in (plain, keeping):
            torch.manual_seed(1)
            samples.append(policy.act(obs))
        assert torch.equal(samples[0].action_BKA, samples[1].action_BKA)
        assert torch.equal(samples[0].logprob_BKA, samples[1].logprob_BKA)
        assert torch.equal(samples[0].value_B, samples[1].value_B)
        for policy, sample in zip((plain, keeping), samples, strict=True):
            result = policy.evaluate(obs, sample.record)
            assert torch.equal(result.logprob_BKA, samples[0].logprob_BKA)
            (result.logprob_BKA.sum() + result.value_B.sum()).backward()
            policy.optimizer.step()
            policy.optimizer.zero_grad()
    for parameter, other in zip(plain.parameters(), keeping.parameters(), strict=True):
        assert torch.equal(parameter, other)


@pytest.mark.parametrize("family", ["pi0", pytest.param("smolvla", marks=pytest.mark.thorough)])
def test_an_update_computes_the_frozen_part_of_no_decision_again(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being asked to, and with the weights of an update that does."""
    weights, seen, at_update = [], [], []
    backbone, features, train = family_class(family), family_class(family).features, zoo.PPO.train

    def counting(self: Any, inputs: Any) -> Any:
        seen.append(len(inputs.text_BL))
        return features(self, inputs)

    def updating(self: Any) -> None:
        at_update.append(len(seen))
        train(self)
        at_update.append(len(seen))

    monkeypatch.setattr(backbone, "features", counting)
    monkeypatch.setattr(zoo.PPO, "train", updating)
    for options in ({}, {"cache_features": 0.0}):
        env = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=4, seed=0)
        kwargs = {"backbone": family, "backbone_kwargs": {"size": "tiny", **frozen(family), **options}}
        sizes: dict[str, Any] = {"n_steps": 4, "batch_size": 8, "n_epochs": 3}
        model = zoo.PPO("VLAPolicy", env.as_sb3(), policy_kwargs=kwargs, seed=0, device="cpu", **sizes).learn(1)
        weights.append(torch.cat([x.flatten() for x in model.policy.parameters()]))
    assert seen[:4] == [4] * 4
    assert at_update == [len(seen), len(seen), len(seen), len(seen)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)


def test_trained_image_encoders_are_refused() -> None:
    with pytest.raises(BadValue, match="cache_features is for frozen image towers, and these are trained"):
        tiny_policy("openvla-oft", {"cache_features": 1.0})
    with pytest.raises(BadValue, match="cache_features"):
        tiny_policy("pi0", {"cache_features": 1.0, "train_expert_only": False})
