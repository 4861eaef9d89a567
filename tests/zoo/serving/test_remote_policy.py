"""A served policy in our own loops: the numbers are those of the policy loaded here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vla_gym
from vla_gym.errors import ServerFailed
from vla_gym.specs import StartState
from vla_policies.actions.noise import TORCH_NOISE, EpisodeDecision, EpisodeNoise, SlotNoise
from zoo.demonstrations.policy_recorder import RolloutRules, roll_out
from zoo.evaluation.evaluator import EpisodeRecord, NoisePredictor, evaluate
from zoo.serving.address import ServerAddress, ServerConf
from zoo.serving.declaration import Declaration
from zoo.serving.local_policy import LocalPolicy
from zoo.serving.remote_policy import RemotePolicy
from zoo.serving.requests import Decision, Request

from .conftest import OPTIONS, Serving, echo, observation

STARTS = [StartState(task_id=task, trial_id=trial) for task in range(2) for trial in range(3)]


def remote(server: Any, declaration: Declaration, protocol: str = "openpi", **conf: Any) -> RemotePolicy:
    settings = {"protocol": protocol, "attempts": 1, "timeout": 20.0, **conf}
    address = ServerAddress(url=f"ws://127.0.0.1:{server.port}", conf=ServerConf(**settings))
    return RemotePolicy(address, declaration)


def played(policy: Any, *, deterministic: bool, seed: int = 3) -> list[EpisodeRecord]:
    envs = vla_gym.make_vec("Toy-Reach", 4, autoreset_mode="disabled", **OPTIONS)
    try:
        episodes = evaluate(policy, envs, STARTS, deterministic=deterministic, rounds=2, seed=seed)
    finally:
        envs.close()
    return [replace(episode, seconds=0.0) for episode in episodes]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("protocol", ["openpi", "vla-eval"])
def test_an_evaluation_is_the_local_one(
    serving: Serving, toy_policy: LocalPolicy, protocol: str, deterministic: bool
) -> None:
    local = played(toy_policy.policy, deterministic=deterministic)
    with serving(toy_policy.decide, toy_policy.declaration, protocol) as server:
        policy = remote(server, toy_policy.declaration, protocol)
        assert isinstance(policy, NoisePredictor)
        assert played(policy, deterministic=deterministic) == local
        assert policy.action_selection_text(deterministic=deterministic) == toy_policy.policy.action_selection_text(
            deterministic=deterministic
        )
        policy.close()
    assert server.metrics.connections == 4  # one for each environment, whatever the number of episodes
    assert server.metrics.batch_size.counts[-1] < server.metrics.decisions


def test_recorded_episodes_are_the_local_ones(serving: Serving, toy_policy: LocalPolicy) -> None:
    rules = RolloutRules(deterministic=False, seed=5, gamma=0.99, gae_lambda=0.95)
    attempts = [(start, 0) for start in STARTS[:3]]

    def recorded(policy: Any, rules: RolloutRules) -> Any:
        envs = vla_gym.make_vec("Toy-Reach", 3, autoreset_mode="disabled", **{**OPTIONS, "chunk": 1})
        try:
            return roll_out(envs, policy, attempts, 7, rules)
        finally:
            envs.close()

    local = recorded(toy_policy.policy, rules)
    with serving(toy_policy.decide, toy_policy.declaration) as server:
        policy = remote(server, toy_policy.declaration)
        served = recorded(policy, rules)
        bare = recorded(policy, replace(rules, values=False))
        policy.close()
    for here, there, without in zip(local, served, bare, strict=True):
        assert np.array_equal(here.action_TA, there.action_TA)
        assert np.array_equal(here.images["image"], there.images["image"])
        assert here.extra.keys() == there.extra.keys()
        for name, column in here.extra.items():
            assert np.allclose(column, there.extra[name], atol=1e-4), name
        assert np.array_equal(here.action_TA, without.action_TA)
        assert set(here.extra) - set(without.extra) == {"vla_zoo.logprob", "vla_zoo.value", "vla_zoo.advantage"}


def test_episodes_keep_their_connections(serving: Serving, declaration: Declaration) -> None:
    """A server of another make deals chunks connection by connection: an episode must not meet another's."""
    seen: list[tuple[int, ...]] = []

    def decide(requests: Sequence[Request]) -> list[Decision]:
        seen.extend(request.noise.numbers for request in requests)
        return echo(declaration)(requests)

    rows = {key: np.stack([value] * 3) for key, value in observation(declaration).items() if key != "instruction"}
    obs = {**rows, "instruction": ("reach red",) * 3}
    with serving(decide, declaration) as server:
        policy = remote(server, declaration)
        for trials, decision in (((0, 1, 2), 0), ((2, 0, 1), 1), ((1, 3, 2), 2)):
            noise = EpisodeNoise(0, [EpisodeDecision(0, trial, 0, decision) for trial in trials])
            assert policy.predict_with_noise(obs, noise).shape == (3, 3, 2)
        places = {episode[1]: place for episode, place in policy._place.items()}
        assert places == {1: 1, 2: 2, 3: 0}  # 3 took the place of 0
        assert len(policy._connections) == 3
        policy.predict(obs)
        policy.close()
    assert (0, 3, 0, 2) in seen
    with pytest.raises(ValueError, match="of one episode"):
        policy.predict_with_noise(obs, SlotNoise(0, (0, 0), np.array([1, 1, 2])))
    with pytest.raises(ValueError, match="can be named"):
        policy.act(obs, False, TORCH_NOISE)


def test_answers_that_are_wrong_end_in_one_line(serving: Serving, declaration: Declaration) -> None:
    longer = replace(declaration, chunk=4)
    obs = {key: np.stack([value]) for key, value in observation(declaration).items() if key != "instruction"}
    obs["instruction"] = ("reach red",)  # type: ignore[assignment]

    def decide(requests: Sequence[Request]) -> list[Decision]:
        return echo(longer)(requests)

    with serving(decide, declaration) as server:
        policy = remote(server, declaration)
        with pytest.raises(ServerFailed, match=r"must be \[3, 2\], got \[4, 2\]"):
            policy.predict(obs)
        policy.close()


def test_a_server_that_tells_no_values_gives_actions_alone(serving: Serving, declaration: Declaration) -> None:
    obs = {key: np.stack([value]) for key, value in observation(declaration).items() if key != "instruction"}
    obs["instruction"] = ("reach red",)  # type: ignore[assignment]
    with serving(echo(declaration), declaration) as server:
        told = remote(server, declaration)
        assert told.act(obs, True, SlotNoise(0, (0, 0), np.array([0]))).value_B.tolist() == [1.0]
        assert told.predict_values(obs).tolist() == [[1.0]]
        told.close()
