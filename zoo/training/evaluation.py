"""Evaluations during training: the run's policy on fixed start states, shared out over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.specs import StartState, Task
from zoo.config.run_config import RunConfig
from zoo.distributed.process_group import ProcessGroup
from zoo.distributed.shares import own_block
from zoo.evaluation.evaluator import EpisodeRecord, Frame, choose_start_states, evaluate
from zoo.evaluation.video import EvaluationVideo
from zoo.training.callbacks import Stopped
from zoo.training.checkpoint_callback import CheckpointCallback

_FILMED_EPISODES = 9


class Evaluator:
    """Evaluates the run's policy on its fixed start states; the simulators start at the first call."""

    def __init__(
        self,
        config: RunConfig,
        envs: VLAVectorEnv,
        policy: Any,
        checkpoints: CheckpointCallback,
        process_group: ProcessGroup,
    ) -> None:
        tasks = envs.benchmark.tasks
        self._config = config
        self._policy = policy
        self._checkpoints = checkpoints
        self._process_group = process_group
        self._cells = own_cells(config, tasks, process_group)
        self._instructions = [tasks[cell.task_id].instruction for cell in self._cells]
        self._envs: VLAVectorEnv | None = None
        self.video = EvaluationVideo(self._instructions, max_episodes=_FILMED_EPISODES)
        """Film of this rank's part of the latest evaluation."""

    def __call__(self) -> list[EpisodeRecord]:
        """Evaluate the likeliest actions, all ranks together; raises `Stopped` when one is asked to stop."""
        self.video = EvaluationVideo(self._instructions, max_episodes=_FILMED_EPISODES)
        return of_all_ranks(self._evaluate_own, self._process_group)

    def close(self) -> None:
        """End the evaluation's simulators."""
        if self._envs is not None:
            self._envs.close()

    def _evaluate_own(self) -> list[EpisodeRecord]:
        """This rank's start states; other ranks that are asked to stop are waited for."""
        if not self._cells:
            return []
        if self._checkpoints.stopping:
            raise Stopped  # before simulators start, which takes long
        if self._envs is None:
            self._envs = make_evaluation_envs(self._config, self._cells, self._process_group)

        def on_frame(frame: Frame) -> None:
            if self._checkpoints.stopping:
                raise Stopped
            self.video.add_frame(frame)

        return evaluate(self._policy, self._envs, self._cells, on_frame=on_frame)


def own_cells(config: RunConfig, tasks: Sequence[Task], process_group: ProcessGroup) -> list[StartState]:
    """The start states that this rank evaluates; none where the run is not evaluated."""
    cells = choose_start_states(tasks, config.eval_episodes) if config.eval_episodes else []
    return cells[own_block(len(cells), process_group)]


def make_evaluation_envs(
    config: RunConfig, cells: Sequence[StartState], process_group: ProcessGroup
) -> VLAVectorEnv:
    """The simulators of one rank that evaluates `cells`: its share of `num_envs`, but no more than it needs."""
    num_envs = max(1, min(config.num_envs // process_group.size, len(cells)))
    # A lost episode is run again, so a restart leaves no hole in the evaluation.
    options = {"on_worker_error": "restart", **config.env_options, "group_size": 1}
    if "num_workers" in options:
        options["num_workers"] = min(options["num_workers"], num_envs)
    return make_vec(config.env, num_envs, autoreset_mode="disabled", **options)


def of_all_ranks(
    evaluate_own: Callable[[], Sequence[EpisodeRecord]], process_group: ProcessGroup
) -> list[EpisodeRecord]:
    """The episodes of every rank, in the order of their start states; every rank must ask.

    Raises `Stopped` where `evaluate_own` did on some rank.
    """
    own: Sequence[EpisodeRecord] = ()
    stopped = False
    try:
        own = evaluate_own()
    except Stopped:
        stopped = True
    if process_group.any(stopped):
        raise Stopped
    told = process_group.all_gather_object([asdict(episode) for episode in own])
    return [EpisodeRecord(**episode) for part in told for episode in part]
