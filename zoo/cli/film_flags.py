"""`--video-size`, and the name and the size of the films that commands write."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import vla_gym
from vla_gym.observation import LARGEST_IMAGE, SMALLEST_IMAGE
from zoo.cli.agent import RolloutPlan
from zoo.cli.arguments import count
from zoo.evaluation.replay import ActionLog, film_again
from zoo.evaluation.video import EvaluationVideo
from zoo.runs.folder import folder_name
from zoo.runs.shipped_agents import is_shipped

_logger = logging.getLogger(__name__)


def picture_size(text: str) -> int:
    """Return a side that simulators can draw, pixels."""
    size = count(text)
    if not SMALLEST_IMAGE <= size <= LARGEST_IMAGE:
        raise argparse.ArgumentTypeError(f"must be in {SMALLEST_IMAGE} .. {LARGEST_IMAGE} pixels, got {text}")
    return size


def add_video_size_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--video-size`."""
    parser.add_argument(
        "--video-size",
        type=picture_size,
        metavar="PIXELS",
        help="side of each film's pictures, e.g. 480: the episodes are played once more to draw them (default: the "
        "policy's own pictures)",
    )


def film_name(plan: RolloutPlan, stem: str) -> str:
    """Return the name of a film that belongs to no run folder: `<stem>-<policy>-<environment>`."""
    policy = Path(plan.policy)
    name = policy.parent.name if is_shipped(policy) else policy.name.replace(":", "-")
    return f"{stem}-{name}-{folder_name(plan.env)}"


def finished_film(plan: RolloutPlan, drawn: EvaluationVideo, log: ActionLog, size: int | None) -> EvaluationVideo:
    """Return the film as it was `drawn`, or with `size` the episodes of the `log` in pictures of that size.

    Raises `BadValue` where the simulator does not repeat itself exactly.
    """
    if size is None:
        return drawn
    _logger.info(f"drawing the episodes in {size} x {size} pixels")
    options = {**plan.env_options, "image_size": size}
    envs = vla_gym.make_vec(plan.env, plan.num_envs, autoreset_mode="disabled", **options)
    tasks = envs.benchmark.tasks
    larger = EvaluationVideo(
        [tasks[start.task_id].instruction for start in plan.episodes], max_episodes=len(plan.episodes)
    )
    try:
        film_again(envs, log.actions, plan.episodes, larger)
    finally:
        envs.close()
    return larger
