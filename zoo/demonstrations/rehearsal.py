"""Plays an expert's episodes without pictures first, where many of them are not solved.

Drawing takes most of a demonstration's time, and what is not solved is thrown away. An episode follows from its start
state, its round and the seed alone, so the one that is drawn is the one that was rehearsed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.demonstrations.recorder import Attempt, Demonstration, Interrupted

MOST_FAILED = 0.25
"""Share of episodes without success above which rehearsing takes less time than drawing them."""
MOST_BLOCKS = 8
"""Rehearsals of as many episodes as environments before one is drawn, however few were solved."""

Play = Callable[[VLAVectorEnv, Sequence[Attempt]], list[Demonstration]]
"""One episode for each attempt, at most as many as environments, in their order."""


class Rehearsal:
    """Records solved episodes in `envs`; the others are played there only until they are more than `MOST_FAILED`.

    `open_blind` makes as many environments without cameras, which are closed with `envs`.
    """

    def __init__(self, envs: VLAVectorEnv, open_blind: Callable[[], VLAVectorEnv], play: Play) -> None:
        self._envs, self._open_blind, self._play = envs, open_blind, play
        self._blind: VLAVectorEnv | None = None
        self._played = self._failed = 0

    def record(self, attempts: Sequence[Attempt], wanted: int) -> list[Demonstration]:
        """Episodes of the first of these attempts, in their order; those that are not solved may have no pictures.

        No more are rehearsed than it takes to solve `wanted`.
        """
        if self._failed <= MOST_FAILED * self._played:
            episodes = self._play(self._envs, attempts[: self._envs.num_envs])
        else:
            try:
                episodes = self._rehearsed(attempts, min(wanted, self._envs.num_envs))
            except Interrupted as stop:  # whose episodes are not all drawn
                raise stop.cause from stop
        self._played += len(episodes)
        self._failed += sum(not one.success for one in episodes)
        return episodes

    def close(self) -> None:
        """Close all environments."""
        self._envs.close()
        if self._blind is not None:
            self._blind.close()

    def _rehearsed(self, attempts: Sequence[Attempt], wanted: int) -> list[Demonstration]:
        if self._blind is None:
            self._blind = self._open_blind()
        episodes: list[Demonstration] = []
        solved: list[int] = []
        for begin in range(0, min(len(attempts), MOST_BLOCKS * self._envs.num_envs), self._envs.num_envs):
            block = self._play(self._blind, attempts[begin : begin + self._envs.num_envs])
            solved += [begin + index for index, one in enumerate(block) if one.success]
            episodes += block
            if len(solved) >= wanted:
                solved = solved[:wanted]
                episodes = episodes[: solved[-1] + 1]
                break
        drawn = self._play(self._envs, [attempts[index] for index in solved]) if solved else []
        for index, episode in zip(solved, drawn, strict=True):
            episodes[index] = episode
        return episodes
