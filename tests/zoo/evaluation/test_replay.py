"""Episodes are filmed in larger pictures by playing their actions again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo.evaluation.evaluator import Frame, evaluate
from zoo.evaluation.replay import ActionLog, film_again
from zoo.evaluation.video import EvaluationVideo

STARTS = [StartState(task_id=task, trial_id=trial) for task in range(3) for trial in range(2)]


class Wanderer:
    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def predict(self, observation: Any, **kwargs: Any) -> tuple[np.ndarray, None]:
        shape = (len(observation["image"]), 2, 2)
        return self._rng.uniform(-1, 1, shape).astype(np.float32), None


class Film(EvaluationVideo):
    """Remembers (episode, pictures' side, solved)."""

    def __init__(self) -> None:
        super().__init__(["x"] * len(STARTS))
        self.frames: list[tuple[int, int, bool]] = []

    def add_frame(self, frame: Frame) -> None:
        self.frames.append((frame.episode, len(frame.image), frame.success))


def toy(image_size: int) -> VLAVectorEnv:
    return make_vec("Toy-Reach", 2, chunk=2, image_size=image_size, autoreset_mode="disabled")


def played() -> tuple[ActionLog, Film]:
    small, envs = Film(), toy(32)
    log = ActionLog(envs)

    def on_frame(frame: Frame) -> None:
        log.see(frame)
        small.add_frame(frame)

    evaluate(Wanderer(), log, STARTS, on_frame=on_frame)
    envs.close()
    return log, small


def test_every_frame_comes_again_in_another_size() -> None:
    log, small = played()
    large, envs = Film(), toy(96)
    film_again(envs, log.actions, STARTS, large)
    envs.close()
    assert large.frames == [(episode, 96, solved) for episode, _, solved in small.frames]
    assert len({episode for episode, *_ in large.frames}) == len(STARTS)
    assert any(solved for *_, solved in large.frames)


def test_an_episode_that_takes_another_course_is_an_error() -> None:
    log, _ = played()
    envs = toy(96)
    with pytest.raises(BadValue, match="does not repeat itself exactly"):
        film_again(
            envs, {episode: 0 * np.array(actions)[:1] for episode, actions in log.actions.items()}, STARTS, Film()
        )
    envs.close()
