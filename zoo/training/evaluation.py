"""Evaluations during training: the run's policy on fixed start states, shared out over the ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue
from vla_gym.specs import StartState, Task
from vla_gym.video import VideoGrid
from zoo.config.evaluation import EvaluationProtocol
from zoo.config.run_config import RunConfig
from zoo.distributed.process_group import ProcessGroup, own_block
from zoo.evaluation.evaluator import (
    EpisodeRecord,
    Frame,
    choose_start_states,
    episodes_of,
    evaluate,
    tasks_of,
)
from zoo.evaluation.video import EvaluationVideo
from zoo.training.callbacks import Stopped

_logger = logging.getLogger(__name__)

EVALUATED_SHARE = 0.1
"""Simulator steps that evaluations before the end may add by default, as a share of those of training."""
MOST_BEFORE_THE_END = 5
"""Evaluations before the end by default, the one before training included."""

VIDEO_EPISODES = 9
"""Episodes of a video, three by three."""
ASKING_SECONDS = 1.0
"""How often a rank that evaluates asks whether another one is to stop."""


def evaluations_before_the_end(config: RunConfig, tasks: Sequence[Task]) -> int:
    """How often a run that does not say is evaluated before its end: 0 .. `MOST_BEFORE_THE_END`, before training first.

    As often as `EVALUATED_SHARE` affords when every episode lasts as long as it may.
    """
    start_states = evaluated_start_states(config, tasks)
    steps = sum(tasks[start.task_id].horizon for start in start_states) * config.evaluation.rounds
    return min(MOST_BEFORE_THE_END, int(EVALUATED_SHARE * config.n_timesteps / steps)) if steps else 0


class Evaluator:
    """Evaluates a policy on the run's fixed start states; all ranks together."""

    def __init__(
        self,
        config: RunConfig,
        tasks: Sequence[Task],
        policy: Callable[[], Any],
        stopping: Callable[[], bool],
        process_group: ProcessGroup,
        *,
        envs: VLAVectorEnv | None = None,
        recorded_episodes: int,
        keeps_simulators: bool = True,
    ) -> None:
        """`policy` returns the policy with its present weights; `stopping` is whether this rank is asked to stop.

        `envs`: this rank's simulators, autoreset DISABLED; without them the first call starts its own, or every call
        unless it `keeps_simulators`, which take memory while the run trains.
        """
        self._config = config
        self._policy = policy
        self._stopping = stopping
        self._process_group = process_group
        self._start_states = own_start_states(config, tasks, process_group)
        played = episodes_of(self._start_states, config.evaluation.rounds)
        self._instructions = [tasks[start.task_id].instruction for start, _ in played]
        self._envs = envs
        self._owned_envs: VLAVectorEnv | None = None
        self._recorded_episodes = recorded_episodes
        self._keeps_simulators = keeps_simulators
        self._stop_flag, self._asked_at = "", 0.0
        self.protocol: dict[str, Any] = {}
        """Of the environments of the latest evaluation."""
        self.video = self._new_video()
        """Video of this rank's part of the latest evaluation."""

    def __call__(self) -> list[EpisodeRecord]:
        """Evaluate by the run's protocol; raises `Stopped` when a rank is asked to stop. Every rank must call it."""
        self.video = self._new_video()
        policy = self._policy()
        self._stop_flag, self._asked_at = self._process_group.new_flag(), time.monotonic()
        try:
            episodes = of_all_ranks(lambda: self._evaluate_own(policy), self._process_group)
            protocols = self._process_group.all_gather_object(None if self._envs is None else self._envs.protocol())
            self.protocol = next((protocol for protocol in protocols if protocol), {})
            return episodes
        finally:
            if not self._keeps_simulators:
                self.close()

    def close(self) -> None:
        """End the simulators that were started here."""
        if self._owned_envs is not None:
            self._owned_envs.close()
            self._envs = self._owned_envs = None

    def _new_video(self) -> EvaluationVideo:
        return EvaluationVideo(self._instructions, max_episodes=self._recorded_episodes)

    def _evaluate_own(self, policy: Any) -> list[EpisodeRecord]:
        self._check_going_on()  # before simulators start, which takes long
        if not self._start_states:
            return []
        if self._envs is None:
            self._envs = self._owned_envs = make_evaluation_envs(
                self._config, len(self._instructions), self._process_group
            )

        def on_frame(frame: Frame) -> None:
            self._check_going_on()
            self.video.add_frame(frame)

        protocol = self._config.evaluation
        with sampling_by(policy, protocol):
            return evaluate(
                policy,
                self._envs,
                self._start_states,
                deterministic=not protocol.sample,
                rounds=protocol.rounds,
                seed=self._config.seed,
                on_frame=on_frame,
            )

    def _check_going_on(self) -> None:
        """Raise `Stopped` where this rank is asked to stop, or has heard, within `ASKING_SECONDS`, that another is."""
        if self._stopping():
            self._process_group.set_flag(self._stop_flag)
            raise Stopped
        if (now := time.monotonic()) - self._asked_at >= ASKING_SECONDS:
            self._asked_at = now
            if self._process_group.has_flag(self._stop_flag):
                raise Stopped


@contextmanager
def sampling_by(policy: Any, protocol: EvaluationProtocol) -> Iterator[None]:
    """Context manager in which the policy draws tokens as the protocol says, and then as it did before."""
    if not protocol.sampling:
        yield
        return
    former = policy.sampling
    policy.sampling = replace(former, **protocol.sampling)
    try:
        yield
    finally:
        policy.sampling = former


def evaluated_start_states(config: RunConfig, tasks: Sequence[Task]) -> list[StartState]:
    """Return the start states of the run's evaluations; none where it is not evaluated."""
    if not config.eval_episodes:
        return []
    evaluated = tasks_of(config.eval_tasks, tasks)
    chosen = choose_start_states([tasks[task_id] for task_id in evaluated], config.eval_episodes)
    return [StartState(task_id=evaluated[start.task_id], trial_id=start.trial_id) for start in chosen]


def own_start_states(config: RunConfig, tasks: Sequence[Task], process_group: ProcessGroup) -> list[StartState]:
    """Return the start states of the run's evaluations that this rank plays."""
    start_states = evaluated_start_states(config, tasks)
    return start_states[own_block(len(start_states), process_group)]


def make_evaluation_envs(config: RunConfig, num_episodes: int, process_group: ProcessGroup) -> VLAVectorEnv:
    """Return the simulators of one rank that evaluates: its share of `num_envs`, but no more than it needs."""
    num_envs = max(1, min(config.num_envs // process_group.size, num_episodes))
    # A lost episode is run again, so a restart leaves no hole in the evaluation.
    options = {"on_worker_error": "restart", **config.eval_env_options, "group_size": 1}
    if "num_workers" in options:
        options["num_workers"] = min(options["num_workers"], num_envs)
    return make_vec(config.eval_env, num_envs, autoreset_mode="disabled", **options)


def of_all_ranks(
    evaluate_own: Callable[[], Sequence[EpisodeRecord]], process_group: ProcessGroup
) -> list[EpisodeRecord]:
    """Return the episodes of every rank, in the order of their start states; every rank must call it.

    Raises `Stopped` where `evaluate_own` did on some rank.
    """
    own: Sequence[EpisodeRecord] | None = None
    with suppress(Stopped):
        own = evaluate_own()
    if process_group.any(own is None):
        raise Stopped
    parts = process_group.all_gather_object([asdict(episode) for episode in own or ()])
    return [EpisodeRecord(**episode) for part in parts for episode in part]


def write_video(grid: VideoGrid, path: Path, *, fps: float) -> Path | None:
    """Write a video of a run and return its path; None, with a warning, where it cannot be written.

    Days of training do not end for want of ffmpeg.
    """
    try:
        return grid.write(path, fps=fps)
    except BadValue as error:
        _logger.warning("warning: %s", error)
        return None
