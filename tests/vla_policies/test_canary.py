"""Decisions on the observation that is always the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies import VLAPolicy, canary
from vla_policies.canary import canary_numbers, canary_observation, check_canary, saved_canary
from vla_policies.conventions import Conventions


def fresh(family: str = "nano", **options: Any) -> VLAPolicy:
    return VLAPolicy.from_pretrained(family, backbone_kwargs={"size": "tiny", **options}, device="cpu")


def test_the_observation_is_the_same_everywhere(conventions: Conventions) -> None:
    obs = canary_observation(conventions)
    assert obs["image"].shape == (1, conventions.image_size, conventions.image_size, 3)
    # The first bytes of SHAKE-256 of "image".
    assert obs["image"].ravel()[:4].tolist() == list(hashlib.shake_256(b"image").digest(4))
    assert (obs["image"] != obs["wrist_image"]).any()
    assert np.abs(obs["state"]).max() <= 1.0


@pytest.mark.parametrize("family", ["nano", "nano-flow"])
def test_numbers_are_of_the_weights_alone(family: str) -> None:
    policy = fresh(family)
    policy.set_training_mode(True)
    state = torch.random.get_rng_state()
    numbers = canary_numbers(policy)
    assert numbers == canary_numbers(policy)
    assert torch.equal(state, torch.random.get_rng_state())
    assert policy.training
    assert numbers is not None
    assert len(numbers) == policy.conventions.chunk + 1


def test_other_weights_decide_otherwise() -> None:
    policy = fresh()
    wanted = canary_numbers(policy)
    assert wanted is not None
    assert check_canary(policy, wanted) == 0.0
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    with pytest.raises(BadValue, match="decides otherwise than when it was saved"):
        check_canary(policy, wanted)
    with pytest.raises(BadValue, match="of which its certificate says"):
        check_canary(policy, wanted[:-1])


def test_what_processors_make_of_it_is_no_difference() -> None:
    policy = fresh()
    numbers = canary_numbers(policy)
    assert numbers is not None
    assert check_canary(policy, tuple(number + 0.005 for number in numbers)) == pytest.approx(0.005, rel=1e-2)


def test_large_networks_and_what_cannot_draw_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = fresh()
    assert saved_canary(policy) is not None
    monkeypatch.setattr(canary, "CANARY_PARAMETERS", 10)
    assert saved_canary(policy) is None

    def refuse(*args: Any, **kwargs: Any) -> Callable[..., None]:
        raise BadValue("regression heads give no probabilities")

    monkeypatch.setattr(policy, "act", refuse)
    assert canary_numbers(policy) is None
