"""`python -m zoo.record_video -i logs/ppo/LIBERO-Spatial_1`: episodes side by side in one mp4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vla_gym.system.writable_paths import check_destination
from zoo.cli.agent import plan_rollout
from zoo.cli.arguments import OneLineParser
from zoo.cli.film_flags import add_video_size_argument, film_name, finished_film
from zoo.cli.main import guarded
from zoo.cli.run_choice import chosen_run
from zoo.cli.shared_flags import add_length_arguments, add_policy_arguments, add_run_arguments
from zoo.evaluation.evaluator import Frame
from zoo.evaluation.replay import ActionLog
from zoo.evaluation.statistics import overall_rate
from zoo.evaluation.video import EvaluationVideo
from zoo.runs.folder import RECORDED_VIDEO, video_file


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
    default = video_file(plan.output_folder, plan.named(RECORDED_VIDEO), elsewhere=film_name(plan, "video"))
    output = check_destination(Path(args.output) if args.output else default, suffix=".mp4")

    from zoo.cli.open_agent import open_rollout, play

    print(f"{plan.policy} on {plan.env}", flush=True)
    policy, envs = open_rollout(plan)
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
    finished_film(plan, recorder, log, args.video_size).write(output, fps=fps)
    print(f"{output}: {fps:g} frames (decisions) per second")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
