"""Episodes played once more with the actions they had, for instance to film them in larger pictures.

An episode follows from its start state and its actions; the size of a picture changes neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo.evaluation.evaluator import EvaluationEnv, Frame, evaluate
from zoo.evaluation.video import EvaluationVideo


class ActionLog:
    """Stands before an environment in `evaluate` and remembers every episode's actions; `see` every frame."""

    def __init__(self, envs: EvaluationEnv) -> None:
        self.num_envs = envs.num_envs
        self.actions: dict[int, list[np.ndarray]] = {}
        """Episode -> its actions `[K, A]`, one for each decision."""
        self._envs = envs
        self._episode: dict[int, int] = {}

    def see(self, frame: Frame) -> None:
        """Learn which environment plays which episode; one that begins once more forgets its earlier actions."""
        if frame.first:
            self._episode[frame.env] = frame.episode
            self.actions[frame.episode] = []

    def reset(self, *, options: Mapping[str, Any] | None = None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """As the environment's."""
        return self._envs.reset(options=options)

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, Any]]:
        """As the environment's."""
        for env, episode in self._episode.items():
            self.actions[episode].append(actions[env].copy())
        obs, reward_N, terminated_N, truncated_N, infos = self._envs.step(actions)
        for env in np.flatnonzero(terminated_N | truncated_N).tolist():
            self._episode.pop(env, None)
        return obs, reward_N, terminated_N, truncated_N, infos


class _Player:
    """A predictor that gives logged actions back; `see` every frame."""

    def __init__(self, actions: Mapping[int, Sequence[np.ndarray]]) -> None:
        self._actions = actions
        self._left: dict[int, deque[np.ndarray]] = {}

    def see(self, frame: Frame) -> None:
        if frame.first:
            self._left[frame.env] = deque(self._actions[frame.episode])

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, None]:
        chosen = [left.popleft() for _, left in sorted(self._left.items()) if left]
        if len(chosen) != len(observation["image"]):
            raise BadValue("an episode did not end where it had ended: this simulator does not repeat itself exactly")
        return np.stack(chosen), None


def film_again(
    envs: EvaluationEnv,
    actions: Mapping[int, Sequence[np.ndarray]],
    start_states: Sequence[StartState],
    video: EvaluationVideo,
) -> None:
    """Play the episodes from their `start_states` with their `actions` and add every frame to `video`.

    Raises `BadValue` where one takes another course.
    """
    player = _Player(actions)

    def on_frame(frame: Frame) -> None:
        player.see(frame)
        video.add_frame(frame)

    evaluate(player, envs, start_states, on_frame=on_frame)
