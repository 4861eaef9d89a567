"""The replay: rows of rollouts and demonstrations, their targets by hand; a LeRobotDataset out and in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vla_gym
from vla_gym.errors import BadValue
from vla_gym.observation import ObservationLayout, encode_instructions
from vla_gym.vector.step import EnvStep
from vla_policies.types import ActionSample
from zoo.demonstrations.lerobot_reader import UNKNOWN_START, read_dataset
from zoo.demonstrations.recorder import SUCCESS, Demonstration
from zoo.off_policy.qc import chunk_targets
from zoo.off_policy.replay import NONE, Replay, write_dataset
from zoo.rollout.buffer import Step

LAYOUT = ObservationLayout(cameras=("image",), image_size=8, state_dim=1)
CPU = torch.device("cpu")


def observation(*marks: int) -> dict[str, Any]:
    """One observation for each mark, which is its state and the colour of its image."""
    image = np.stack([np.full((8, 8, 3), mark, np.uint8) for mark in marks])
    return {"image": image, "state": np.array(marks, np.float32)[:, None], "instruction": ("go",) * len(marks)}


def step(before: dict[str, Any], after: dict[str, Any], rewards: list[list[float]], **ends: list[int]) -> Step:
    """A decision of two environments, K = 3: rewards of the executed steps, and how it ended."""
    bools = {name: np.array(ends.get(name, [0, 0]), bool) for name in ("terminated", "truncated", "lost")}
    outcome = EnvStep(
        obs=after,
        reward_n=np.array([sum(own) for own in rewards]),
        **{f"{name}_n": flags for name, flags in bools.items()},
        executed_n=np.array([len(own) for own in rewards]),
        success_n=bools["terminated"],
        idle_n=np.zeros(2, bool),
        task_id_n=np.zeros(2, int),
        trial_id_n=np.zeros(2, int),
        start_state_n=np.array(["", ""], object),
        step_reward_nK=np.array([own + [0.0] * (3 - len(own)) for own in rewards], np.float32),
        episodes=[None, None],
    )
    action = torch.arange(6.0).reshape(2, 3, 1) / 10
    sample = ActionSample(action, torch.zeros_like(action), torch.zeros(2))
    return Step(np.arange(2), encode_instructions(before), sample, outcome, encode_instructions(after))


def replay_of(*steps: Step, **kwargs: Any) -> Replay:
    replay = Replay(LAYOUT, num_envs=2, chunk=3, action_dim=1, capacity=40, **kwargs)
    for one in steps:
        replay.add(one)
    return replay


FIRST = step(observation(1, 11), observation(2, 12), [[0, 1, 0], [0, 0, 0]])
LAST = step(observation(2, 12), observation(3, 13), [[0, 2], [1]], terminated=[1, 0], truncated=[0, 1])


def test_targets_discount_inside_the_chunk_and_bootstrap_after_a_time_limit_alone() -> None:
    replay = replay_of(FIRST, LAST)
    batch = replay.decisions(replay.rows(), CPU)
    by_mark = dict(zip(batch.obs["state"][:, 0].tolist(), chunk_targets(batch, torch.full((4,), 8.0), 0.5).tolist()))
    assert by_mark == {
        1: 0.5 * 1 + 0.125 * 8,  # the whole chunk of three steps
        11: 0.125 * 8,
        2: 0.5 * 2,  # the task's own rule ended it in the second step
        12: 1 + 0.5 * 8,  # time was up after the first step
    }
    cut_off = batch.obs["state"][:, 0] == 12
    assert batch.next_obs["state"][cut_off, 0].tolist() == [13]
    assert batch.next_obs["image"][cut_off].unique().tolist() == [13]


def test_the_next_episode_has_rows_of_its_own_and_a_lost_one_no_end() -> None:
    lost = step(observation(20, 30), observation(21, 31), [[0, 0, 0], [0]], truncated=[0, 1], lost=[0, 1])
    replay = replay_of(FIRST, LAST, lost)
    marks = replay.columns["obs.state"][replay.rows(), 0].tolist()
    assert sorted(marks) == [1, 2, 11, 12, 20]  # what was decided in the lost episode's last chunk is not learned
    episodes = replay.columns["episode"][: replay.size].tolist()
    states = replay.columns["obs.state"][: replay.size, 0].tolist()
    assert [set(np.array(states)[np.array(episodes) == one]) for one in sorted(set(episodes))] == [
        *({1, 2}, {11, 12, 13}, {20, 21}, {30})
    ]


def test_a_table_of_targets_has_the_discounted_returns_as_its_fixed_point(toy_replay: Replay) -> None:
    gamma, columns = 0.9, toy_replay.columns
    rows = toy_replay.rows()
    batch = toy_replay.decisions(rows, CPU)
    value = np.zeros(toy_replay.size)
    for _ in range(5):  # no episode has more than 3 decisions of 4 steps
        next_value = torch.from_numpy(value[columns["next"][rows]])
        value[rows] = chunk_targets(batch, next_value, gamma).numpy()
    expected = {}
    for row in rows:
        # The toy pays 1 in the step that solves it: gamma to the steps before that.
        later = [one for one in rows if columns["episode"][one] == columns["episode"][row] and one >= row]
        rewards = np.concatenate([columns["reward"][one][: columns["executed"][one]] for one in later])
        expected[row] = sum(reward * gamma**number for number, reward in enumerate(rewards))
    assert max(expected.values()) > 0
    np.testing.assert_allclose(value[rows], [expected[row] for row in rows], atol=1e-6)


@pytest.fixture(scope="module")
def toy_replay() -> Replay:
    """Three rollouts of random decisions on Toy-Reach."""
    from stable_baselines3.common.callbacks import CallbackList

    from zoo.off_policy.qc import QC

    envs = vla_gym.make_vec("Toy-Reach", num_envs=6, chunk=4, seed=1)
    model = QC(
        *("VLAPolicy", envs),
        seed=0,
        device="cpu",
        policy_kwargs={"backbone": "nano", "backbone_kwargs": {"size": "tiny"}},
        learning_starts=10**6,
    )
    model.learn(400, CallbackList([]))
    envs.close()
    assert model.replay is not None
    return model.replay


def demonstration(length: int, *, solved: bool) -> Demonstration:
    """Frames whose states and actions count; solved in the last step, or never."""
    marks = np.arange(length, dtype=np.float32)[:, None]
    return Demonstration(
        task="",
        instruction="go",
        start=UNKNOWN_START,
        start_state="",
        success=solved,
        images={"image": np.zeros((length, 8, 8, 3), np.uint8)},
        state_TS=marks,
        action_TA=marks / 10,
        extra={SUCCESS: (marks[:, 0] == length - 1) & solved},
    )


def test_demonstrations_are_windows_of_the_next_steps() -> None:
    replay = replay_of()
    replay.add_demonstrations([demonstration(5, solved=True), demonstration(4, solved=False)])
    columns = replay.columns
    assert columns["executed"][:5].tolist() == [3, 3, 3, 2, 1]
    assert columns["next"][:5].tolist() == [3, 4, NONE, NONE, NONE]
    assert columns["reward"][:5].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    np.testing.assert_allclose(columns["action"][:5, :, 0][[0, 3]], [[0, 0.1, 0.2], [0.3, 0.4, 0]])
    # What came after the unsolved one's last three frames is not known.
    assert replay.rows().tolist() == [0, 1, 2, 3, 4, 5]
    assert replay.decisions(np.array([5]), CPU).next_obs["state"].tolist() == [[3]]


def test_half_of_a_batch_is_of_demonstrations(toy_replay: Replay) -> None:
    assert len(toy_replay.draw(np.random.default_rng(0), 8, 0.5)) == 8  # of rollouts alone, where there is nothing else
    replay = replay_of(FIRST)
    replay.add_demonstrations([demonstration(5, solved=True)])
    taught = replay.columns["demonstration"][replay.draw(np.random.default_rng(0), 8, 0.75)]
    assert taught.sum() == 6


def test_decisions_go_into_a_lerobot_dataset_and_back(toy_replay: Replay, tmp_path: Path) -> None:
    number = write_dataset(toy_replay, tmp_path / "decisions", fps=2)
    episodes = read_dataset(tmp_path / "decisions", outcomes=True)
    assert len(episodes) == number > 3
    layout = ObservationLayout(cameras=("image",), image_size=32, state_dim=2)
    back = Replay(layout, num_envs=1, chunk=4, action_dim=2, capacity=500)
    back.add_demonstrations(episodes)
    columns, again = toy_replay.columns, back.columns
    # An episode that time cut off has lost its last observation, and with it the last decision's target.
    solved = [row for row in toy_replay.rows() if columns["ends"][row] and columns["solved"][row]]
    found = [row for row in back.rows() if again["ends"][row]]
    assert len(solved) == len(found) > 0
    for name in ("obs.image", "obs.state", "action", "executed"):
        order, other = (np.lexsort(one["obs.state"][rows].T) for one, rows in ((columns, solved), (again, found)))
        np.testing.assert_array_equal(columns[name][solved][order], again[name][found][other])
    assert again["reward"][found].sum() == columns["reward"][solved].sum()


def test_a_checkpoint_forgets_what_came_after_it(tmp_path: Path) -> None:
    replay = replay_of(FIRST, folder=tmp_path)
    state = replay.state()
    replay.add(LAST)
    replay.flush()
    again = replay_of(folder=tmp_path)
    again.restore(state)
    assert again.rows().tolist() == [0, 1]
    again.add(LAST)
    for name, column in again.columns.items():
        np.testing.assert_array_equal(column[: again.size], replay.columns[name][: replay.size])


def test_a_replay_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="lacks decisions"):
        replay_of(folder=tmp_path).restore({"size": 3, "open": [1, 2]})
