"""An evaluation during training ends early on every rank where one of them is asked to stop."""

from __future__ import annotations

import pytest
import torch

import vla_gym
from tests.zoo.stand_ins import toy_config
from vla_gym import VLAVectorEnv
from vla_policies import VLAPolicy
from zoo.distributed.process_group import ProcessGroup
from zoo.training.callbacks import Stopped
from zoo.training.evaluation import Evaluator

CONFIG = toy_config(n_timesteps=8, num_envs=2, seed=1, eval_episodes=4)


class Flags(ProcessGroup):
    """The only rank, which is told what another has said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def set_flag(self, name: str) -> None:
        self.said.add(name)

    def has_flag(self, name: str) -> bool:
        return name in self.said


@pytest.fixture
def envs() -> VLAVectorEnv:
    return vla_gym.make_vec("Toy-Reach", num_envs=2, autoreset_mode="disabled")


def evaluator(envs: VLAVectorEnv, process_group: ProcessGroup, asked: list[bool]) -> Evaluator:
    """One that this rank is asked to stop at its first decision where `asked` holds True."""
    torch.manual_seed(0)
    view = vla_gym.make_vec("Toy-Reach", num_envs=1).as_sb3()
    policy = VLAPolicy(
        view.observation_space, view.action_space, lambda _: 1e-3, backbone="nano", backbone_kwargs={"size": "tiny"}
    )
    tasks = envs.benchmark.tasks
    return Evaluator(CONFIG, tasks, lambda: policy, lambda: asked[0], process_group, envs=envs, recorded_episodes=0)


def test_a_rank_that_is_asked_to_stop_tells_the_others(envs: VLAVectorEnv) -> None:
    flags = Flags()
    with pytest.raises(Stopped):
        evaluator(envs, flags, [True])()
    assert len(flags.said) == 1


def test_a_rank_hears_that_another_is_asked_and_the_next_evaluation_is_played(
    envs: VLAVectorEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.training.evaluation.ASKING_SECONDS", 0.0)
    flags = Flags()
    monkeypatch.setattr(flags, "new_flag", iter(["first", "second"]).__next__)
    flags.set_flag("first")
    evaluate = evaluator(envs, flags, [False])
    with pytest.raises(Stopped):
        evaluate()
    assert len(evaluate()) == 4
