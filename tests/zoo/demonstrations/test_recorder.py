"""Which start states an expert tries, who acts when, and what is kept of an episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from vla_gym import VLAVectorEnv, find_benchmark, make_vec
from vla_gym.adapters.toy import ToyReach
from vla_gym.specs import StartState, Task
from vla_policies import VLAPolicy
from zoo.collect import kept_episodes
from zoo.demonstrations.policy_recorder import PolicyActor
from zoo.demonstrations.recorder import DRAWN, HOLD, PRIVILEGED, Demonstration, all_attempts, demonstrate
from zoo.imitation.frames import frames_of

TOY = find_benchmark("Toy-Reach")
K = 4


def task(num_trials: int) -> Task:
    return Task(name="t", instruction="do it", horizon=10, num_trials=num_trials, suite="s")


def start(task_id: int, trial_id: int) -> StartState:
    return StartState(task_id=task_id, trial_id=trial_id)


def test_tasks_take_turns_and_rounds_come_last() -> None:
    assert all_attempts([task(2), task(1)], 2) == [
        (start(0, 0), 0),
        (start(1, 0), 0),
        (start(0, 1), 0),
        (start(0, 0), 1),
        (start(1, 0), 1),
        (start(0, 1), 1),
    ]


class Constant:
    """Pushes along the first axis as far as its task says, whatever it reads."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        action_A = np.zeros(TOY.action_dim, dtype=np.float32)
        action_A[0] = 0.25 + privileged_P[0]
        return action_A


@pytest.fixture
def envs(monkeypatch: pytest.MonkeyPatch) -> Iterator[VLAVectorEnv]:
    monkeypatch.setattr(ToyReach, "privileged", lambda self: np.array([0.5]), raising=False)
    made = make_vec(
        replace(TOY, privileged_dim=1), 6, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0
    )
    yield made
    made.close()


def test_an_episode_holds_a_frame_for_every_step(envs: VLAVectorEnv) -> None:
    first, second = demonstrate(envs, Constant, [(start(0, 0), 0), (start(0, 1), 0)])
    assert (first.start, second.start) == (start(0, 0), start(0, 1))
    assert first.start_state != second.start_state
    assert first.instruction == TOY.tasks[0].instruction
    length = first.length
    assert 0 < length <= TOY.tasks[0].horizon
    assert first.images["image"].shape == (length, *envs.layout.arrays()["image"][0])
    assert first.state_TS.shape == (length, TOY.state_dim)
    np.testing.assert_array_equal(first.action_TA[:, 0], np.full(length, 0.75, np.float32))
    # What the expert saw is kept beside it.
    np.testing.assert_array_equal(first.extra[PRIVILEGED], np.full((length, 1), 0.5, np.float32))
    # The first frame is what the reset showed.
    obs, _ = envs.reset(options={"task_id": 0, "trial_id": 0})
    np.testing.assert_array_equal(first.images["image"][0], obs["image"][0])


def test_noise_moves_the_arm_but_not_what_is_learned(envs: VLAVectorEnv) -> None:
    (calm,) = demonstrate(envs, Constant, [(start(0, 0), 0)])
    (noisy,) = demonstrate(envs, Constant, [(start(0, 0), 0)], noise=0.5)
    beside, again = demonstrate(envs, Constant, [(start(0, 3), 0), (start(0, 0), 0)], noise=0.5)
    (other,) = demonstrate(envs, Constant, [(start(0, 0), 1)], noise=0.5)
    shortest = min(calm.length, noisy.length, other.length)
    np.testing.assert_array_equal(calm.action_TA[:shortest], noisy.action_TA[:shortest])
    assert (calm.images["image"][:shortest] != noisy.images["image"][:shortest]).any()
    assert (other.images["image"][:shortest] != noisy.images["image"][:shortest]).any()
    # The same start state and round show the same episode, whoever plays beside it.
    np.testing.assert_array_equal(again.images["image"], noisy.images["image"])
    assert beside.start == start(0, 3)


def test_what_is_not_drawn_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyReach, "privileged", lambda self: np.array([0.5]), raising=False)
    benchmark, found, again = replace(TOY, privileged_dim=1), [], []
    for every in (1, 3):
        rules = {"privileged": True, "autoreset_mode": "disabled", "num_workers": 0, "draw_every": every}
        made = make_vec(benchmark, 1, chunk=1, **rules)
        found += demonstrate(made, Constant, [(start(0, 0), 0)])
        made.reset(options={"task_id": 0, "trial_id": 0})
        for _ in range(2):
            made.step(np.full((1, 1, TOY.action_dim), 0.5, np.float32))
        state = made.state_dict()
        made.reset(options={"task_id": 0, "trial_id": 1})
        again.append(made.load_state_dict(state)[0]["image"])
        made.close()
    whole, some = found
    np.testing.assert_array_equal(*again)  # a replay draws where it ends
    assert DRAWN not in whole.extra
    drawn_T = some.extra[DRAWN]
    np.testing.assert_array_equal(np.flatnonzero(drawn_T), np.arange(0, whole.length, 3))
    np.testing.assert_array_equal(some.action_TA, whole.action_TA)
    image_TF, drawn_TF = (np.asarray(one.images["image"]).reshape(whole.length, -1) for one in (whole, some))
    np.testing.assert_array_equal(drawn_TF, image_TF[np.arange(whole.length) // 3 * 3])
    assert (drawn_TF[1] != image_TF[1]).any()
    frames, rest = frames_of([some, whole], 4), len(whole.images["image"])
    assert len(frames) == drawn_T.sum() + rest
    np.testing.assert_array_equal(frames.obs["image"][: drawn_T.sum()], whole.images["image"][drawn_T])
    np.testing.assert_array_equal(frames.action_BKA[1], whole.action_TA[3:7])


def test_more_attempts_than_environments_are_refused(envs: VLAVectorEnv) -> None:
    with pytest.raises(ValueError, match="7 attempts for 6 environments"):
        demonstrate(envs, Constant, [(start(0, trial), 0) for trial in range(7)])


# Where another leads --------------------------------------------------------------------------------

ATTEMPTS = [(start(0, trial), 0) for trial in range(6)]


@pytest.fixture(scope="module")
def student() -> VLAPolicy:
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


def taken_over(envs: VLAVectorEnv, student: VLAPolicy, which: slice, share: float) -> list[Demonstration]:
    actor = PolicyActor(student, 0, deterministic=True, seed=0)
    return demonstrate(envs, Constant, ATTEMPTS[which], lead=share, leader=actor.act, chunk=K)


def led_steps(share: float, chunk: int, horizon: int = 12) -> list[int]:
    """Whole chunks, uniform from none to `share` of the horizon, by each attempt's own generator."""
    draws = (
        np.random.default_rng([0, 0, trial, 0]).integers(0, int(share * horizon / chunk) + 1) for trial in range(6)
    )
    return [chunk * int(drawn) for drawn in draws]


def check_kept(episodes: list[Demonstration], alone: list[Demonstration], steps: list[int]) -> None:
    """The expert's part of each episode is kept, and begins elsewhere than an expert's own where another led."""
    for led, one, own in zip(steps, episodes, alone, strict=True):
        assert (one.start, one.start_state) == (own.start, own.start_state)
        np.testing.assert_array_equal(one.action_TA[:, 0], np.full(one.length, 0.75, np.float32))
        assert one.length == len(one.images["image"]) == len(one.state_TS) == len(one.extra[PRIVILEGED])
        assert one.length <= 12 - led
        if one.length:
            assert (one.state_TS[0] != own.state_TS[0]).any() == (led > 0)


def test_the_dataset_holds_what_the_expert_did_from_where_it_took_over(envs: VLAVectorEnv, student: VLAPolicy) -> None:
    whole = taken_over(envs, student, slice(6), 0.5)
    steps = led_steps(0.5, K)
    assert set(steps) == {0, 4}
    check_kept(whole, demonstrate(envs, Constant, ATTEMPTS), steps)
    (alone,) = taken_over(envs, student, slice(3, 4), 0.5)
    np.testing.assert_allclose(alone.state_TS, whole[3].state_TS, atol=1e-6)


def test_what_a_student_ends_is_not_kept(envs: VLAVectorEnv, student: VLAPolicy) -> None:
    episodes = taken_over(envs, student, slice(6), 1.0)
    empty = [one for one, led in zip(episodes, led_steps(1.0, K), strict=True) if led == 12]
    assert empty
    assert all(one.length == 0 for one in empty)
    kept, tried = kept_episodes(episodes, 100, keep_failures=True)
    assert (len(kept), tried) == (6 - len(empty), 6)


def test_an_arm_that_wanders_is_moved_alike_for_some_steps(envs: VLAVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, executed = led_steps(1.0, 1), []
    own = envs.step
    monkeypatch.setattr(envs, "step", lambda action_NA: executed.append(action_NA.copy()) or own(action_NA))
    episodes = demonstrate(envs, Constant, ATTEMPTS, lead=1.0)
    env = next(env for env, one in enumerate(episodes) if one.length and steps[env] > HOLD)
    generator = np.random.default_rng([0, 0, env, 0])
    generator.integers(0, 13)
    for step in range(steps[env]):
        if step % HOLD == 0:
            held_A = generator.uniform(-1.0, 1.0, TOY.action_dim).astype(np.float32)
        np.testing.assert_array_equal(executed[step][env], held_A)


def test_the_dataset_holds_what_the_expert_did_after_the_arm_wandered(envs: VLAVectorEnv) -> None:
    whole = demonstrate(envs, Constant, ATTEMPTS, lead=0.25)
    steps = led_steps(0.25, 1)
    assert {0, 3} <= set(steps)
    check_kept(whole, demonstrate(envs, Constant, ATTEMPTS), steps)
    (alone,) = demonstrate(envs, Constant, ATTEMPTS[3:4], lead=0.25)
    (other,) = demonstrate(envs, Constant, ATTEMPTS[3:4], lead=0.5, seed=1)
    np.testing.assert_array_equal(alone.state_TS, whole[3].state_TS)
    assert other.state_TS.shape != alone.state_TS.shape or (other.state_TS != alone.state_TS).any()
