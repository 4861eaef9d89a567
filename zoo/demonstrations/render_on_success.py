"""Renders an expert's solved episodes alone: where many fail, each is first played without cameras.

An episode that is not solved is thrown away, and a step without cameras takes 1 to 18 % of the time of one with them
(window-close, LIBERO-Goal/7, PickCube, StackCube; 64 and 128 px). An episode follows from its start state, its round
and the seed alone, so playing it once more with cameras gives the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.demonstrations.recorder import Attempt, Demonstration, Interrupted

FAILURE_SHARE = 0.25
"""Share of episodes without success above which they are first played without cameras; it is above those 18 %."""
MOST_BATCHES = 8
"""Batches of `num_envs` episodes that are played without cameras before solved ones are rendered, however few."""

Play = Callable[[VLAVectorEnv, Sequence[Attempt]], list[Demonstration]]
"""One episode for each attempt, at most as many as environments, in their order."""


class RenderOnSuccess:
    """Records episodes in `envs`, from the first failures above `FAILURE_SHARE` on the solved ones alone.

    `open_without_cameras` makes as many environments without cameras; `close` closes both.
    """

    def __init__(self, envs: VLAVectorEnv, open_without_cameras: Callable[[], VLAVectorEnv], play: Play) -> None:
        self._envs, self._open_without_cameras, self._play = envs, open_without_cameras, play
        self._without_cameras: VLAVectorEnv | None = None
        self._num_played = self._num_failed = 0

    def record(self, attempts: Sequence[Attempt], wanted: int) -> list[Demonstration]:
        """Return the episodes of the first of these attempts, in their order.

        Of episodes first played without cameras no more than `wanted` are rendered, or than there are environments. An
        episode that is not solved may have no images. Raises what ended recording, a `VLAZooError`; where episodes
        were played without cameras, those of this call are lost.
        """
        if self._num_failed <= FAILURE_SHARE * self._num_played:
            episodes = self._play(self._envs, attempts[: self._envs.num_envs])
        else:
            try:
                episodes = self._render_solved(attempts, min(wanted, self._envs.num_envs))
            except Interrupted as stop:  # its episodes are not all rendered
                raise stop.cause from stop
        self._num_played += len(episodes)
        self._num_failed += sum(not episode.success for episode in episodes)
        return episodes

    def close(self) -> None:
        """Close all environments."""
        self._envs.close()
        if self._without_cameras is not None:
            self._without_cameras.close()

    def _render_solved(self, attempts: Sequence[Attempt], wanted: int) -> list[Demonstration]:
        if self._without_cameras is None:
            self._without_cameras = self._open_without_cameras()
        num_envs = self._envs.num_envs
        episodes: list[Demonstration] = []
        solved: list[int] = []
        while len(solved) < wanted and len(episodes) < min(len(attempts), MOST_BATCHES * num_envs):
            begin = len(episodes)
            episodes += self._play(self._without_cameras, attempts[begin : begin + num_envs])
            solved += [index for index in range(begin, len(episodes)) if episodes[index].success]
        if len(solved) >= wanted:
            solved = solved[:wanted]
            episodes = episodes[: solved[-1] + 1]
        rendered = self._play(self._envs, [attempts[index] for index in solved]) if solved else []
        for index, episode in zip(solved, rendered, strict=True):
            episodes[index] = episode
        return episodes
