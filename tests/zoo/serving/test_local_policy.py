"""The served policy: its declaration, and that a chunk does not depend on who else asks."""

from __future__ import annotations

import numpy as np
import pytest

from vla_policies.actions.noise import EpisodeDecision, EpisodeNoise, SlotNoise
from zoo.serving.local_policy import LocalPolicy
from zoo.serving.protocols import ActionRequest

from .conftest import CHUNK, OPTIONS, SIZE, observation


def test_the_declaration_says_what_the_run_had(toy_policy: LocalPolicy) -> None:
    declared = toy_policy.declaration
    assert (declared.cameras, declared.image_size, declared.state_dim) == (("image",), SIZE, 2)
    assert (declared.chunk, declared.action_dim, declared.env) == (CHUNK, 2, "Toy-Reach")
    assert declared.options() == OPTIONS
    assert declared.action_spec is not None
    assert declared.weights_sha256 is not None
    assert set(declared.selection) == {"deterministic", "sampled"}


@pytest.mark.parametrize("deterministic", [True, False])
def test_served_chunks_are_the_local_ones_alone_and_in_a_batch(toy_policy: LocalPolicy, deterministic: bool) -> None:
    keys = [(3, 0, n, 5) for n in range(3)] + [(3, 1, 2, 0, 7)]
    requests = [
        ActionRequest(observation=observation(toy_policy.declaration, n), noise=key, deterministic=deterministic)
        for n, key in enumerate(keys)
    ]
    together = toy_policy.decide(requests)
    for request, batched in zip(requests, together, strict=True):
        noise = SlotNoise(3, request.noise[1:3], np.array(request.noise[3:]))  # type: ignore[arg-type]
        if len(request.noise) == 5:
            noise = EpisodeNoise(3, [EpisodeDecision(1, 2, 0, 7)])  # type: ignore[assignment]
        local = toy_policy.policy.act(request.observation, deterministic, noise).action_BKA[0].numpy()
        (alone,) = toy_policy.decide([request])
        assert alone.tobytes() == local.tobytes()
        assert batched.tobytes() == local.tobytes()


def test_requests_that_are_not_alike_are_decided_in_their_order(toy_policy: LocalPolicy) -> None:
    small, large = observation(toy_policy.declaration, 1), observation(toy_policy.declaration, 2)
    large["image"] = np.repeat(np.repeat(large["image"], 2, 0), 2, 1)
    requests = [
        ActionRequest(observation=obs, noise=(0, 0, 0, 0), deterministic=flag)
        for obs, flag in ((small, True), (large, True), (small, False), (small, True))
    ]
    answers = toy_policy.decide(requests)
    alone = [toy_policy.decide([one])[0] for one in requests]
    assert [a.tobytes() for a in answers] == [a.tobytes() for a in alone]
    assert answers[0].tobytes() == answers[3].tobytes()
