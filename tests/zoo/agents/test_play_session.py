"""A robot that is instructed: its decisions are an evaluation's, words reach the policy, and what is seen of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.stand_ins import SeeingPolicy
from vla_gym import make_vec
from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo import play
from zoo.agents.agent import open_agent
from zoo.agents.play_session import PlaySession
from zoo.cli.agent import plan_rollout
from zoo.evaluation.evaluator import evaluate


@pytest.fixture
def seeing() -> Iterator[PlaySession]:
    """Toy-Reach and a policy that goes to the block whose colour it is told."""
    session = PlaySession(SeeingPolicy(), make_vec("Toy-Reach", 1, wrist_camera=True, autoreset_mode="disabled"))
    yield session
    session.close()


def played(session: PlaySession) -> list[int]:
    """Play to the end; the number of decisions after each step."""
    decisions = []
    while not session.step().over:
        decisions.append(session.state.decisions)
    return decisions


@pytest.mark.parametrize("family", ["nano", "nano-flow"])
def test_an_episode_is_that_of_an_evaluation(family: str) -> None:
    argv = ["--policy", family, "--env", "Toy-Reach", "--stochastic", "--num-envs", "1", "--seed", "7"]
    agent = plan_rollout(play.parser().parse(argv), episodes=None)
    policy, envs = open_agent(agent)
    begins = [StartState(task_id=task, trial_id=3) for task in range(3)]
    expected = evaluate(policy, envs, begins, deterministic=False, seed=7)
    envs.close()

    session = PlaySession(policy, make_vec("Toy-Reach", 1, chunk=1, autoreset_mode="disabled"), sample=True)
    for begin, episode in zip(begins, expected, strict=True):
        session.reset(begin.task_id, begin.trial_id, seed=7)
        assert played(session) == [1 + step // 4 for step in range(episode.length - 1)]
        assert (session.state.steps, session.state.success) == (episode.length, episode.success_once)
        now = session.state.decision
        assert now is not None
        if family == "nano":
            assert now.entropy is not None
            assert now.entropy > 0
        else:
            assert now.chain_JKA is not None
            assert now.chain_JKA.shape[1:] == now.action_KA.shape
            assert now.entropy is None
    session.close()


def test_the_policy_hears_the_person_and_the_task_decides_success(seeing: PlaySession, tmp_path: Path) -> None:
    seeing.instruct("please touch the red one")
    played(seeing)
    assert seeing.state.success
    assert seeing.state.goal == "reach the red block"
    assert seeing.state.instruction == "please touch the red one"

    begun = seeing.reset(task_id=0, trial_id=1)
    assert (begun.instruction, begun.steps, begun.over, begun.decision) == ("reach the red block", 0, False, None)
    first = seeing.step()
    seeing.instruct("no, to the blue one")  # heard once the chunk of two is over
    second = seeing.step()
    assert (first.decisions, second.decisions, seeing.step().decisions) == (1, 1, 2)
    played(seeing)
    assert not seeing.state.success
    steps = seeing.state.steps
    assert seeing.step().steps == steps, "an episode that is over stands still"
    assert set(seeing.state.images) == {"image", "wrist_image"}
    assert not np.array_equal(begun.images["image"], seeing.state.images["image"])
    assert seeing.state.decisions_per_second > 0
    assert seeing.save_video(tmp_path / "episode.mp4").stat().st_size > 1000
    assert {tile.instruction for tile in seeing._video.tiles.values()} == {"reach the red block > no, to the blue one"}


@pytest.mark.parametrize("text", ["", "to the \N{ROBOT FACE}", "x" * 353])
def test_what_no_policy_reads_is_refused(seeing: PlaySession, text: str) -> None:
    with pytest.raises(BadValue, match="instruction"):
        seeing.instruct(text)
    assert seeing.state.instruction == "reach the red block"
