"""`vla-zoo enjoy --env MetaWorld/reach`: watch a trained agent, in a window or, without a display, as an mp4."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_gym.specs import Task
from vla_gym.system.paths import check_destination
from vla_gym.video import caption
from zoo.agents.agent import Agent, open_agent, play
from zoo.cli.agent import plan_rollout
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.cli.run_choice import chosen_run
from zoo.cli.shared_flags import (
    add_length_arguments,
    add_policy_arguments,
    add_run_arguments,
)
from zoo.evaluation.evaluator import EpisodeRecord, Frame
from zoo.evaluation.statistics import overall_rate
from zoo.evaluation.video import EvaluationVideo, Window, open_window
from zoo.runs.folder import WATCHED_VIDEO

_EPISODES = 5


def parser() -> OneLineParser:
    """The flags of `vla-zoo enjoy`, as in rl_zoo3."""
    p = OneLineParser("vla-zoo enjoy", "Watch a trained agent: a window where there is a display, else an mp4.")
    add_policy_arguments(p)
    add_run_arguments(p)
    add_length_arguments(p, episodes=_EPISODES)
    p.add_argument("--no-render", action="store_true", help="neither window nor video")
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write an mp4, window or not (default without a display: videos/ in the run folder, else "
        "enjoy-POLICY-ENV.mp4 here)",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    args.num_envs = args.num_envs or 1
    watch(args, WATCHED_VIDEO, elsewhere="enjoy", windowed=True, rendered=not args.no_render)
    return 0


def watch(args: argparse.Namespace, name: str, *, elsewhere: str, windowed: bool, rendered: bool = True) -> None:
    """Play an agent's episodes and print what became of them, in a window or, where there is none, as an mp4.

    Without `-o` the mp4 is `name` in the run folder or, for other policies, named after `elsewhere`, agent and
    environment.
    """
    args.run = chosen_run(args)
    plan = plan_rollout(args, episodes=args.episodes, n_timesteps=args.n_timesteps)
    output = Path(args.output) if args.output else plan.video_file(name, elsewhere=elsewhere)
    if rendered:
        check_destination(output, suffix=".mp4")

    policy, envs = open_agent(plan)
    title, fps = f"{plan.policy.name} on {plan.env}", float(envs.metadata["render_fps"])
    print(title, flush=True)
    window = open_window(title, fps=fps) if windowed and rendered else None
    video = output if rendered and (args.output or not window) else None
    show = _Show(plan, envs.benchmark.tasks, window, recorded=video is not None)
    try:
        with show.recorder.kept(video, fps=fps):
            episodes = play(plan, policy, envs, on_frame=show.add, on_episode=show.end)
    finally:
        envs.close()
        if window:
            window.close()
    rate = overall_rate(episodes)
    low, high = rate.interval
    print(f"{rate.successes} of {rate.episodes} episodes solved, 95 % interval [{low:.0%}, {high:.0%}]")
    if video:
        show.recorder.write(video, fps=fps)
        missed = windowed and not window
        print(f"{'no window can be shown here; ' if missed else ''}the episodes as a video: {video}")


class _Show:
    """The environments' present frames side by side in a window, a video, and a line for each episode."""

    def __init__(self, plan: Agent, tasks: Sequence[Task], window: Window | None, *, recorded: bool) -> None:
        sentences = [tasks[start.task_id].instruction for start in plan.episodes]
        self.recorder = EvaluationVideo(sentences, max_episodes=len(sentences) if recorded else 0)
        self._sentences, self._tasks, self._window = sentences, tasks, window
        self._tiles: dict[int, np.ndarray] = {}
        self._ended = 0

    def add(self, frame: Frame) -> None:
        """Show the next frame of one environment."""
        self.recorder.add_frame(frame)
        if self._window is None:
            return
        sentence = self._sentences[frame.episode]
        self._tiles[frame.env] = caption(frame.image, sentence, success=frame.success, over=False)
        self._window.show(np.hstack([self._tiles[env] for env in sorted(self._tiles)]))

    def end(self, episode: EpisodeRecord) -> None:
        """Print the line of an episode that has ended."""
        self._ended += 1
        outcome = "solved" if episode.success_once else "not solved"
        sentence = self._tasks[episode.task_id].instruction
        print(f"{self._ended}/{len(self._sentences)} {sentence}: {outcome}, {episode.length} steps", flush=True)


if __name__ == "__main__":
    raise SystemExit(guarded(run))
