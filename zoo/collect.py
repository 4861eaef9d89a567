"""`python -m zoo.collect --env MetaWorld/reach --expert -n 20 -o demos/reach`: an expert's or a policy's episodes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.registry import find_benchmark
from vla_gym.system.paths import check_folder
from zoo.cli.agent import is_server
from zoo.cli.arguments import OneLineParser, count, count_or_zero, share, value_of
from zoo.cli.demonstration_source import (
    GAE_LAMBDA,
    GAMMA,
    STUDENT_SHARE,
    Source,
    expert_source,
    policy_source,
    student_source,
)
from zoo.cli.main import check_alone, guarded
from zoo.cli.shared_flags import add_policy_arguments
from zoo.config.gym_packages import import_named_packages, packages_flag
from zoo.config.settings import Fraction, Range
from zoo.files import quoted
from zoo.runs.progress import Progress


def parser() -> OneLineParser:
    """The flags of `zoo.collect`."""
    p = OneLineParser("zoo.collect", "An expert's or a policy's episodes as a LeRobotDataset v3.0.")
    add_policy_arguments(p)
    p.add_argument(
        "--expert",
        action="store_true",
        help="the benchmark's scripted expert acts, in the pictures of the recipe of --policy (default: nano)",
    )
    p.add_argument(
        "--student",
        metavar="RUN",
        help="with --expert: this policy begins each episode, and the dataset holds what the expert does from where it "
        "takes over",
    )
    p.add_argument(
        "--student-share",
        type=share,
        metavar="X",
        help=f"largest share of the horizon that the student plays (default: {STUDENT_SHARE})",
    )
    p.add_argument(
        "--wander",
        type=share,
        metavar="X",
        help="with --expert: the arm is first moved at random, for up to this share of the horizon, and the dataset "
        "holds what the expert does from there",
    )
    p.add_argument("-n", "--episodes", type=count, metavar="N", help="episodes the dataset is to hold")
    p.add_argument("-o", "--output", metavar="FOLDER", help="dataset folder; one that is there is gone on with")
    p.add_argument(
        "--noise",
        type=value_of(Annotated[float, Range(low=0, below=2)]),
        default=0.0,
        metavar="STD",
        help="deviation added to an expert's executed actions (default: 0)",
    )
    p.add_argument("--keep-failures", action="store_true", help="keep episodes that were not solved, too")
    for name, default, what in (("gamma", GAMMA, "discount"), ("gae-lambda", GAE_LAMBDA, "lambda")):
        p.add_argument(
            f"--{name}",
            type=value_of(Fraction),
            metavar="X",
            help=f"{what} of a policy's advantages, over decisions (default: {default})",
        )
    p.add_argument(
        "--skip",
        type=count_or_zero,
        default=0,
        metavar="N",
        help="leave the first N start states out, in the order in which they are tried (default: 0)",
    )
    p.add_argument(
        "--crf",
        type=_crf,
        default=0,
        metavar="N",
        help="what pictures may lose, x264's measure: 0 nothing (default), 16 a quarter of the size",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    check_alone("zoo.collect")
    import_named_packages(args)
    source = _source(args)

    from zoo.demonstrations.dataset_folder import locked

    check_folder(Path(args.output), what="a dataset", flag="-o FOLDER")
    with locked(Path(args.output)):
        return _collect(args, source)


def _collect(args: argparse.Namespace, source: Source) -> int:
    from zoo.demonstrations.lerobot_writer import LeRobotWriter
    from zoo.demonstrations.recorder import Interrupted, all_attempts

    settings = {**source.settings, "keep_failures": args.keep_failures, "crf": args.crf}
    settings |= {"skip": args.skip} if args.skip else {}
    fps = round(source.benchmark.control_hz)
    writer = LeRobotWriter(Path(args.output), settings, fps=fps, crf=args.crf)
    attempts = all_attempts(source.benchmark.tasks, source.rounds)[args.skip :]
    if not attempts:
        raise BadValue(f"--skip {args.skip} leaves no start state of {source.env} to try; give a smaller number")
    progress = Progress(args.episodes, done=writer.episodes, on=args.progress, unit="episode")
    opened, record = source.open()
    try:
        while writer.episodes < args.episodes and writer.tried < len(attempts):
            cause: Exception | None = None
            try:
                wanted = args.episodes - writer.episodes
                episodes = record(attempts[writer.tried :], args.skip + writer.tried, wanted)
            except Interrupted as stop:
                episodes, cause = list(stop.episodes), stop.cause
            except VLAZooError as error:
                if not writer.tried:
                    raise
                episodes, cause = [], error
            kept, tried = kept_episodes(episodes, wanted, keep_failures=args.keep_failures)
            if tried:
                writer.add(kept, tried=writer.tried + tried)
            progress.to(writer.episodes)
            if cause is not None:
                raise type(cause)(f"{cause}; repeat the command to go on after {writer.tried} start states") from cause
    finally:
        progress.close()
        opened.close()
    _print_result(args, source, writer, len(attempts))
    return 0


def _source(args: argparse.Namespace) -> Source:
    if args.on_worker_error != "raise":
        raise BadValue("--on-worker-error: an episode that is lost cannot be collected; repeat the command to go on")
    if args.student is not None and not args.expert:
        raise BadValue("--student needs --expert, which takes over from it; a policy alone is recorded with -i RUN")
    if args.student_share is not None and args.student is None:
        raise BadValue("--student-share is for --student RUN; leave it out")
    if args.env is None and args.run is None and args.student is None and not is_server(args.policy):
        raise BadValue("--env is missing: say where to collect, e.g. --env MetaWorld/reach")
    if args.env is not None:
        find_benchmark(args.env)
    if not args.expert and args.run is None and args.policy is None:
        raise BadValue("say who acts: --expert (the benchmark's scripted expert), -i RUN or --policy NAME")
    for name, flag in (("episodes", "-n"), ("output", "-o")):
        if getattr(args, name) is None:
            raise BadValue(f"{flag} is missing. Example: zoo.collect --env {args.env} --expert -n 20 -o demos/mine")
    if args.student is not None:
        return student_source(args)
    return expert_source(args) if args.expert else policy_source(args)


def kept_episodes(episodes: Sequence[Any], wanted: int, *, keep_failures: bool) -> tuple[list[Any], int]:
    """Return the first `wanted` episodes to keep, and the number of start states tried for them.

    What a student ended before its expert took over has no frame and is not kept.
    """
    kept: list[Any] = []
    for tried, episode in enumerate(episodes, start=1):
        if episode.length and (episode.success or keep_failures):
            kept.append(episode)
        if len(kept) == wanted:
            return kept, tried
    return kept, len(episodes)


def _print_result(args: argparse.Namespace, source: Source, writer: Any, num_attempts: int) -> None:
    again = None if source.varied_by is None else f"{source.varied_by} makes each try another"
    if not writer.episodes:
        raise BadValue(
            f"none of the {writer.tried} start states that were tried was solved, and nothing was written; "
            f"{'' if again is None else f'{again}, '}--keep-failures keeps what was not solved, too"
        )
    print(
        f"{writer.episodes} episodes, {writer.frames} frames, from {writer.tried} start states tried -> {args.output}"
    )
    if writer.episodes < args.episodes:
        print(
            f"all {num_attempts} start states were tried: {writer.episodes} of {args.episodes} episodes"
            + ("" if again is None else f". More need other tries: {again}")
        )
    else:
        packages = packages_flag(args.gym_packages)
        # An expert's pictures are drawn as these say, and so must be those that the policy acts on.
        pictures = f" -params {shlex.join(args.params)}" if args.expert and args.params else ""
        print(f"next:\n  python -m zoo.sft{packages} --env {source.env} --dataset {quoted(args.output)}{pictures}")


def _crf(text: str) -> int:
    value = count_or_zero(text)
    if value > 51:
        raise argparse.ArgumentTypeError(f"must be in 0 .. 51, x264's scale, got {text}")
    return value


if __name__ == "__main__":
    raise SystemExit(guarded(run))
