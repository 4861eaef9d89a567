"""`python -m zoo.collect --env MetaWorld/reach --expert -n 20 -o demos/reach`: an expert's episodes as a dataset."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_gym.benchmarks import find_benchmark
from vla_gym.errors import BadValue
from zoo.arguments import (
    OneLineParser,
    add_gym_packages_argument,
    count,
    count_or_zero,
    import_gym_packages,
    key_values,
)
from zoo.cli import guarded
from zoo.experts.base import expert_class
from zoo.hyperparams import load_hyperparams
from zoo.progress import Progress
from zoo.settings import ENV_SETTINGS, check_settings

_TRAINING_ONLY = ("chunk", "group_size", "reward", "reward_scale", "on_worker_error")
_DEFAULT_NUM_ENVS = 4
_MOST_ROUNDS = 100
"""How often every start state may be tried with noise."""


def parser() -> OneLineParser:
    """The flags of `zoo.collect`."""
    p = OneLineParser("zoo.collect", "An expert's episodes as a LeRobotDataset v3.0.")
    p.add_argument("--env", metavar="ID", help="environment id, e.g. MetaWorld/reach or MetaWorld-MT10")
    p.add_argument("--expert", action="store_true", help="the benchmark's scripted expert acts")
    p.add_argument("-n", "--episodes", type=count, metavar="N", help="episodes the dataset is to hold")
    p.add_argument(
        "-o", "--output", metavar="FOLDER", help="dataset folder; one that is there is gone on with"
    )
    p.add_argument(
        "--policy",
        default="nano",
        metavar="NAME",
        help="family whose recipe sets the pictures (default: nano)",
    )
    p.add_argument(
        "-params",
        "--params",
        nargs="+",
        default=[],
        metavar="KEY:VALUE",
        help="environment settings over that recipe, e.g. image_size:64 env_kwargs:{protocol: lerobot}",
    )
    p.add_argument(
        "--noise",
        type=_deviation,
        default=0.0,
        metavar="STD",
        help="deviation added to executed actions (default: 0)",
    )
    p.add_argument("--keep-failures", action="store_true", help="keep episodes the expert did not solve, too")
    p.add_argument(
        "--crf",
        type=count_or_zero,
        default=0,
        metavar="N",
        help="what pictures may lose, x264's measure: 0 nothing (default), 16 a quarter of the size",
    )
    p.add_argument("--seed", type=count_or_zero, default=0, help="seed of the noise (default: 0)")
    p.add_argument("--num-envs", type=count, metavar="N", help="simulators side by side (default: 4)")
    add_gym_packages_argument(p)
    p.add_argument("-P", "--progress", action="store_true", help="progress bar with time left")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.guarded`."""
    args = parser().parse(argv)
    import_gym_packages(args.gym_packages)
    options = _resolve(args)
    benchmark = find_benchmark(args.env, **_benchmark_options(options))
    make_expert = expert_class(benchmark)

    from vla_gym import make_vec
    from zoo.demonstrations import candidates, demonstrate
    from zoo.lerobot_writer import LeRobotWriter

    num_envs = args.num_envs or _DEFAULT_NUM_ENVS
    settings = {
        "env": args.env,
        "options": {key: value for key, value in sorted(options.items()) if key != "num_workers"},
        "noise": args.noise,
        "seed": args.seed,
        "keep_failures": args.keep_failures,
        "crf": args.crf,
    }
    writer = LeRobotWriter(Path(args.output), settings, fps=round(benchmark.control_hz), crf=args.crf)
    cells = candidates(benchmark.tasks, _MOST_ROUNDS if args.noise else 1)
    progress = Progress(args.episodes, done=writer.episodes, on=args.progress, unit="episode")
    envs = make_vec(args.env, num_envs, chunk=1, privileged=True, autoreset_mode="disabled", **options)
    try:
        while writer.episodes < args.episodes and writer.tried < len(cells):
            wave = cells[writer.tried : writer.tried + num_envs]
            shown = demonstrate(envs, make_expert, wave, noise=args.noise, seed=args.seed)
            kept, tried = _take(shown, args.episodes - writer.episodes, keep_failures=args.keep_failures)
            writer.add(kept, tried=writer.tried + tried)
            progress.to(writer.episodes)
    finally:
        progress.close()
        envs.close()
    _say_result(args, writer, len(cells))
    return 0


def _resolve(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `make_vec` from the recipe and `-params`; raises for what is missing or no setting."""
    if args.env is None:
        raise BadValue("--env is missing: say where to collect, e.g. --env MetaWorld/reach")
    find_benchmark(args.env)
    if not args.expert:
        raise BadValue("say who acts: --expert (the benchmark's scripted expert; nobody else can, so far)")
    for name, flag in (("episodes", "-n"), ("output", "-o")):
        if getattr(args, name) is None:
            raise BadValue(
                f"{flag} is missing. Example: zoo.collect --env {args.env} --expert -n 20 -o demos/mine"
            )
    values = {**load_hyperparams("ppo", args.env, args.policy).values}
    given = check_settings("ppo", key_values(args.params), "-params")
    for name in given:
        if name not in ENV_SETTINGS or name in _TRAINING_ONLY:
            raise BadValue(
                f"-params {name}: collecting takes settings of the environment's pictures and protocol only"
            )
    return env_options({**values, **given, "env_kwargs": _both(values, given)})


def env_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `make_vec` among a recipe's settings, those of training left out."""
    options = {
        name: values[name]
        for name in ENV_SETTINGS
        if name in values and name != "env_kwargs" and name not in _TRAINING_ONLY
    }
    return {**options, **values.get("env_kwargs", {})}


def _both(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    return {**below.get("env_kwargs", {}), **above.get("env_kwargs", {})}


def _benchmark_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ENV_SETTINGS or name == "split"}


def _take(shown: Sequence[Any], wanted: int, *, keep_failures: bool) -> tuple[list[Any], int]:
    """The first `wanted` episodes to keep, and how many start states were used up for them."""
    kept: list[Any] = []
    for tried, one in enumerate(shown, start=1):
        if one.success or keep_failures:
            kept.append(one)
        if len(kept) == wanted:
            return kept, tried
    return kept, len(shown)


def _say_result(args: argparse.Namespace, writer: Any, num_cells: int) -> None:
    print(
        f"{writer.episodes} episodes, {writer.frames} frames, from {writer.tried} start states tried -> {args.output}"
    )
    if writer.episodes < args.episodes:
        print(
            f"all {num_cells} start states were tried: {writer.episodes} of {args.episodes} episodes. "
            "More need --noise, e.g. --noise 0.2, which makes each try another"
        )
    else:
        print(f"next:\n  python -m zoo.sft --env {args.env} --dataset {args.output}")


def _deviation(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 2.0:
        raise argparse.ArgumentTypeError(f"must be a standard deviation in 0 .. 2, got '{text}'")
    return value


def main() -> int:
    """Entry point of `python -m zoo.collect`."""
    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
