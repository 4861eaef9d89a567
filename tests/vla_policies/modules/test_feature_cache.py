"""Features of frozen parts, kept for the epochs of an update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.vla_policies.conftest import tiny_policy, two_observations
from vla_gym.errors import BadValue
from vla_policies.modules.feature_cache import FeatureCache, check_gib
from vla_policies.openvla.network import LANGUAGE_TARGETS

FAMILIES = pytest.mark.parametrize(
    "family", ["openvla-oft", "pi0", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("openvla", "pi05"))]
)


def counted(cache: FeatureCache, keys: list[bytes]) -> list[int]:
    """The places that had to be made; row i is [i] as one float32."""
    asked: list[int] = []

    def make(places: list[int]) -> list[tuple[Tensor, ...]]:
        asked.extend(places)
        return [(torch.tensor([float(place)]),) for place in places]

    rows = cache.rows(keys, make)
    assert len(rows) == len(keys)
    return asked


def test_what_is_there_is_not_made_again() -> None:
    cache = FeatureCache(max_bytes=100)
    assert counted(cache, [b"a", b"b"]) == [0, 1]
    assert counted(cache, [b"c", b"b"]) == [0]
    assert cache.num_bytes == 3 * 4


def test_the_longest_unused_go_first() -> None:
    cache = FeatureCache(max_bytes=8)  # two rows of 4 bytes
    counted(cache, [b"a", b"b"])
    counted(cache, [b"a"])
    assert counted(cache, [b"c"]) == [0]
    assert cache.num_bytes == 8
    assert counted(cache, [b"a", b"c"]) == []
    assert counted(cache, [b"b"]) == [0]


def test_a_row_does_not_keep_its_batch_alive() -> None:
    cache = FeatureCache(max_bytes=100)
    batch = torch.zeros(50, 1)
    ((row,),) = cache.rows([b"a"], lambda _: [(batch[0],)])
    ((kept,),) = cache.rows([b"a"], lambda _: [])
    assert torch.equal(row, kept)
    assert kept.untyped_storage().nbytes() == 4


def frozen(family: str) -> dict[str, Any]:
    """The options that leave the eyes of a family frozen."""
    return {"lora": {"rank": 2, "targets": LANGUAGE_TARGETS}} if family.startswith("openvla") else {}


@FAMILIES
def test_acting_and_learning_give_the_same_numbers_with_it(family: str) -> None:
    plain = tiny_policy(family, frozen(family))
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
        for policy in (plain, keeping):
            result = policy.evaluate(obs, samples[0].record)
            assert torch.equal(result.logprob_BKA, samples[0].logprob_BKA)
            (result.logprob_BKA.sum() + result.value_B.sum()).backward()
            policy.optimizer.step()
            policy.optimizer.zero_grad()
    for parameter, other in zip(plain.parameters(), keeping.parameters(), strict=True):
        assert torch.equal(parameter, other)


def test_trained_image_encoders_are_refused() -> None:
    with pytest.raises(BadValue, match="cache_features is for frozen image towers, and these are trained"):
        tiny_policy("openvla-oft", {"cache_features": 1.0}).act(two_observations())
    with pytest.raises(BadValue, match="cache_features"):
        tiny_policy("pi0", {"cache_features": 1.0, "train_expert_only": False})


@pytest.mark.parametrize("gib", [-1.0, float("nan"), float("inf")])
def test_a_size_is_a_number_of_gib(gib: float) -> None:
    with pytest.raises(BadValue, match="cache_features must be GiB >= 0"):
        check_gib(gib)
