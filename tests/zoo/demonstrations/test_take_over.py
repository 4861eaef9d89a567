"""Who acts when, and what is kept, where an expert takes over from a student, or an arm that wanders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.zoo.demonstrations.test_recorder import Constant
from vla_gym import VLAVectorEnv, find_benchmark, make_vec
from vla_gym.specs import StartState
from vla_policies import VLAPolicy
from zoo.collect import kept_episodes
from zoo.demonstrations.recorder import PRIVILEGED, Attempt, Demonstration, demonstrate
from zoo.demonstrations.take_over import HOLD, Wandering, led_steps, take_over, wander

TOY = find_benchmark("Toy-Reach")
K = 4


class Draws(np.random.Generator):
    """Always draws the highest number."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def integers(self, low: int, high: int) -> int:  # type: ignore[override]
        return high - 1


@pytest.mark.parametrize(
    ("horizon", "chunk", "share", "most"), [(12, 4, 0.5, 4), (12, 4, 1.0, 12), (100, 8, 0.5, 48), (12, 8, 0.5, 0)]
)
def test_a_student_plays_whole_chunks_up_to_its_share(horizon: int, chunk: int, share: float, most: int) -> None:
    assert led_steps(horizon, chunk, share, Draws()) == most
    generator = np.random.default_rng(0)
    drawn = {led_steps(horizon, chunk, share, generator) for _ in range(200)}
    assert drawn == set(range(0, most + 1, chunk))


@pytest.fixture(scope="module")
def envs() -> Iterator[VLAVectorEnv]:
    from vla_gym.adapters.toy import ToyReach

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ToyReach, "privileged", lambda self: np.array([0.5]), raising=False)
        made = make_vec(
            replace(TOY, privileged_dim=1), 6, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def student() -> VLAPolicy:
    from gymnasium import spaces

    torch.manual_seed(0)
    plain = make_vec("Toy-Reach", 1, num_workers=0)
    space = plain.as_sb3().observation_space
    plain.close()
    return VLAPolicy.from_pretrained(
        "nano",
        backbone_kwargs={"size": "tiny"},
        observation_space=space,
        action_space=spaces.Box(-1.0, 1.0, (K, TOY.action_dim)),
        device="cpu",
    )


ATTEMPTS: list[Attempt] = [(StartState(task_id=0, trial_id=trial), 0) for trial in range(6)]


def taken_over(envs: VLAVectorEnv, student: VLAPolicy, attempts: list[Attempt], share: float) -> list[Demonstration]:
    return take_over(envs, student, Constant, attempts, 0, deterministic=True, share=share)


def test_the_dataset_holds_what_the_expert_did_from_where_it_took_over(envs: VLAVectorEnv, student: VLAPolicy) -> None:
    episodes = taken_over(envs, student, ATTEMPTS, 0.5)
    alone = demonstrate(envs, Constant, ATTEMPTS)
    # Drawn for each: 0 or 1 chunks of 4.
    steps = [led_steps(12, K, 0.5, np.random.default_rng([0, 0, trial, 0])) for trial in range(6)]
    assert set(steps) == {0, 4}
    for played, expert, own, (start, _) in zip(steps, episodes, alone, ATTEMPTS, strict=True):
        assert expert.start == start
        assert expert.start_state == own.start_state
        np.testing.assert_array_equal(expert.action_TA[:, 0], np.full(expert.length, 0.75, np.float32))
        assert expert.length == expert.images["image"].shape[0] == expert.state_TS.shape[0]
        assert expert.extra[PRIVILEGED].shape == (expert.length, 1)
        if played == 0:
            np.testing.assert_array_equal(expert.state_TS, own.state_TS)
        else:
            assert expert.length <= 12 - played
            assert (expert.state_TS[0] != own.state_TS[0]).any()


def test_an_episode_does_not_depend_on_those_beside_it(envs: VLAVectorEnv, student: VLAPolicy) -> None:
    whole = taken_over(envs, student, ATTEMPTS, 0.5)
    (alone,) = taken_over(envs, student, ATTEMPTS[3:4], 0.5)
    np.testing.assert_allclose(alone.state_TS, whole[3].state_TS, atol=1e-6)


def test_what_a_student_ends_is_not_kept(envs: VLAVectorEnv, student: VLAPolicy) -> None:
    # 2, 3 and 3 chunks of 4: the second and third student play to the end.
    episodes = taken_over(envs, student, ATTEMPTS, 1.0)
    steps = [led_steps(12, K, 1.0, np.random.default_rng([0, 0, trial, 0])) for trial in range(6)]
    empty = [episode for episode, played in zip(episodes, steps, strict=True) if played == 12]
    assert empty
    assert all(episode.length == 0 for episode in empty)
    kept, tried = kept_episodes(episodes, 100, keep_failures=True)
    assert (len(kept), tried) == (6 - len(empty), 6)


def test_a_wandering_arm_is_moved_alike_for_some_steps() -> None:
    wandering = Wandering([np.random.default_rng(0), np.random.default_rng(1)], 3)
    played = [wandering.act({}, [0, 1]) for _ in range(2 * HOLD)]
    first, second = np.random.default_rng(1).uniform(-1.0, 1.0, (2, 3)).astype(np.float32)
    for step, choices in enumerate(played):
        np.testing.assert_array_equal(choices[1].executed_A, first if step < HOLD else second)
        assert (choices[0].executed_A != choices[1].executed_A).any()


def test_the_dataset_holds_what_the_expert_did_after_the_arm_wandered(envs: VLAVectorEnv) -> None:
    episodes = wander(envs, Constant, ATTEMPTS, share=0.25)
    alone = demonstrate(envs, Constant, ATTEMPTS)
    generators = [np.random.default_rng([0, 0, trial, 0]) for trial in range(6)]
    steps = [led_steps(12, 1, 0.25, generator) for generator in generators]
    # Drawn for each: 0 to 3 steps.
    assert 0 in steps
    assert max(steps) == 3
    for played, expert, own in zip(steps, episodes, alone, strict=True):
        assert expert.start_state == own.start_state
        np.testing.assert_array_equal(expert.action_TA[:, 0], np.full(expert.length, 0.75, np.float32))
        assert expert.length <= 12 - played
        if expert.length:
            # What wandering itself ended has no frame.
            assert (expert.state_TS[0] != own.state_TS[0]).any() == (played > 0)


def test_where_the_arm_wanders_follows_from_seed_and_start_state(envs: VLAVectorEnv) -> None:
    whole = wander(envs, Constant, ATTEMPTS, share=0.5)
    (alone,) = wander(envs, Constant, ATTEMPTS[3:4], share=0.5)
    (other,) = wander(envs, Constant, ATTEMPTS[3:4], share=0.5, seed=1)
    np.testing.assert_array_equal(alone.state_TS, whole[3].state_TS)
    assert other.state_TS.shape != alone.state_TS.shape or (other.state_TS != alone.state_TS).any()
