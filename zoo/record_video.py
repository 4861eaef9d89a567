"""`python -m zoo.record_video -i logs/ppo/LIBERO-Spatial_1`: episodes side by side in one mp4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vla_gym.system.paths import check_destination
from zoo.agents.agent import open_agent, play
from zoo.cli.agent import plan_rollout
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.cli.run_choice import chosen_run
from zoo.cli.shared_flags import (
    add_length_arguments,
    add_policy_arguments,
    add_run_arguments,
)
from zoo.evaluation.statistics import overall_rate
from zoo.evaluation.video import EvaluationVideo
from zoo.runs.folder import RECORDED_VIDEO


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
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    args.run = chosen_run(args)
    plan = plan_rollout(args, episodes=args.episodes, n_timesteps=args.n_timesteps)
    default = plan.video_file(RECORDED_VIDEO, elsewhere="video")
    output = check_destination(Path(args.output) if args.output else default, suffix=".mp4")

    print(f"{plan.policy.name} on {plan.env}", flush=True)
    policy, envs = open_agent(plan)
    tasks = envs.benchmark.tasks
    recorder = EvaluationVideo(
        [tasks[start.task_id].instruction for start in plan.episodes], max_episodes=len(plan.episodes)
    )
    fps = float(envs.metadata["render_fps"])
    try:
        with recorder.kept(output, fps=fps):
            episodes = play(plan, policy, envs, on_frame=recorder.add_frame)
    finally:
        envs.close()
    rate = overall_rate(episodes)
    print(f"{rate.successes} of {rate.episodes} episodes solved")
    recorder.write(output, fps=fps)
    print(f"{output}: {fps:g} frames (decisions) per second")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
