"""`python -m zoo.record_video -i logs/ppo/LIBERO-Spatial_1`: episodes side by side in one mp4."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import vla_gym
from vla_gym.system.paths import check_destination
from zoo.agents.agent import Agent, open_agent, play
from zoo.cli.agent import plan_rollout
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.cli.run_choice import chosen_run
from zoo.cli.shared_flags import (
    add_length_arguments,
    add_policy_arguments,
    add_run_arguments,
    add_video_size_argument,
)
from zoo.evaluation.evaluator import Frame
from zoo.evaluation.replay import ActionLog, film_again
from zoo.evaluation.statistics import overall_rate
from zoo.evaluation.video import EvaluationVideo
from zoo.runs.folder import RECORDED_VIDEO, folder_name, video_file
from zoo.runs.shipped_agents import is_shipped

_logger = logging.getLogger(__name__)


def parser() -> OneLineParser:
    """The flags of `zoo.record_video`."""
    p = OneLineParser("zoo.record_video", "Record a run's or a policy's episodes, one frame per decision.")
    add_policy_arguments(p)
    add_run_arguments(p)
    add_length_arguments(p, episodes=9)
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="mp4 (default: videos/ in the run folder, else video-POLICY-ENV.mp4 here)",
    )
    add_video_size_argument(p)
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    args.run = chosen_run(args)
    plan = plan_rollout(args, episodes=args.episodes, n_timesteps=args.n_timesteps)
    default = video_file(plan.output_folder, plan.named(RECORDED_VIDEO), elsewhere=video_name(plan, "video"))
    output = check_destination(Path(args.output) if args.output else default, suffix=".mp4")

    print(f"{plan.policy.name} on {plan.env}", flush=True)
    policy, envs = open_agent(plan)
    tasks = envs.benchmark.tasks
    recorder = EvaluationVideo(
        [tasks[start.task_id].instruction for start in plan.episodes], max_episodes=len(plan.episodes)
    )
    log = ActionLog(envs)

    def on_frame(frame: Frame) -> None:
        log.see(frame)
        recorder.add_frame(frame)

    fps = float(envs.metadata["render_fps"])
    try:
        with recorder.kept(output, fps=fps):
            episodes = play(plan, policy, log, on_frame=on_frame)
    finally:
        envs.close()
    rate = overall_rate(episodes)
    print(f"{rate.successes} of {rate.episodes} episodes solved")
    finished_video(plan, recorder, log, args.video_size).write(output, fps=fps)
    print(f"{output}: {fps:g} frames (decisions) per second")
    return 0


def video_name(plan: Agent, stem: str) -> str:
    """Return the name of a video that belongs to no run folder: `<stem>-<policy>-<environment>`."""
    policy = Path(plan.policy.name)
    name = policy.parent.name if is_shipped(policy) else policy.name.replace(":", "-")
    return f"{stem}-{name}-{folder_name(plan.env)}"


def finished_video(plan: Agent, recorded: EvaluationVideo, log: ActionLog, size: int | None) -> EvaluationVideo:
    """Return the video as it was recorded, or with `size` the episodes of the `log` in images of that size.

    Raises `BadValue` where the simulator does not repeat itself exactly.
    """
    if size is None:
        return recorded
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


if __name__ == "__main__":
    raise SystemExit(guarded(run))
