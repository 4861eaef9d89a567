"""`vla-zoo doctor`: checks of the machine, of a policy's files, or of an environment by its expert."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from zoo.cli.arguments import OneLineParser, count, key_values
from zoo.cli.main import guarded
from zoo.cli.shared_flags import add_gym_packages_argument, add_params_argument, add_progress_argument
from zoo.config.gym_packages import import_named_packages
from zoo.runs.lookup import policy_path

_DEFAULT_EPISODES = 10


def parser() -> OneLineParser:
    """The flags of `vla-zoo doctor`."""
    p = OneLineParser(
        "vla-zoo doctor",
        "One line for each thing that training needs: ok, or what to do. Exit code 1 when something is missing. "
        "With --oracle: an expert's success, which shows whether actions mean here what they should.",
    )
    p.add_argument("--env", metavar="ID", help="look at this environment only (default: one of each benchmark)")
    p.add_argument(
        "--policy", metavar="FOLDER", help="compare every byte of a policy, or of a run's, with its manifest"
    )
    p.add_argument("--oracle", action="store_true", help="replay the expert of --env")
    p.add_argument(
        "--episodes",
        type=count,
        metavar="N",
        help=f"of the expert, spread over tasks (default: {_DEFAULT_EPISODES})",
    )
    add_params_argument(p, "options of the benchmark for the expert, e.g. protocol:lerobot")
    add_gym_packages_argument(p)
    add_progress_argument(p)
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_named_packages(args)
    if args.policy is not None:
        return _verify_policy(args)
    if args.oracle:
        return _replay_expert(args)
    for name in ("episodes", "params"):
        if getattr(args, name):
            raise BadValue(f"--{name} says how the expert is replayed: it needs --oracle")
    return _check_system(args.env)


def _check_system(env_id: str | None) -> int:
    from zoo.diagnostics import RENDERED, all_checks

    if env_id is not None:
        find_benchmark(env_id)
    all_sound = True
    for check in all_checks(RENDERED if env_id is None else (env_id,)):
        line, sound = check.line()
        print(line, flush=True)
        all_sound = all_sound and sound
    print("all that is needed is here" if all_sound else "something is missing: see above")
    return 0 if all_sound else 1


def _verify_policy(args: argparse.Namespace) -> int:
    if args.env is not None or args.oracle:
        raise BadValue("--policy looks at a policy folder alone; leave --env and --oracle out")
    from vla_policies.checkpoint_io.manifest import MANIFEST_FILE
    from vla_policies.resolver import resolve_policy

    ref = resolve_policy(policy_path(args.policy))
    if ref.fresh:
        raise BadValue(f"--policy {args.policy} means fresh weights; a folder or a Hub id is needed")
    if ref.manifest is None:
        raise BadValue(
            f"'{ref.folder}' has no {MANIFEST_FILE}, being of version 0.1 or of another program: nothing says what it "
            "should hold. Policies that are saved from now on have one"
        )
    ref.verify()
    for name, sha256 in ref.manifest.files.items():
        print(f"ok       {name:<28} {sha256}")
    if ref.manifest.base is not None:
        print(f"ok       {'base model':<28} {ref.manifest.base}")
    return 0


def _replay_expert(args: argparse.Namespace) -> int:
    if args.env is None:
        raise BadValue("--env is missing: say whose expert to replay, e.g. --oracle --env LIBERO-Object/0")
    from zoo.diagnostics import replay
    from zoo.runs.progress import Progress

    episodes = args.episodes or _DEFAULT_EPISODES
    find_benchmark(args.env)
    options = key_values(args.params)
    progress = Progress(episodes, on=args.progress, unit="episode")
    try:
        result = replay(args.env, episodes, options, on_episodes=progress.to)
    finally:
        progress.close()
    print(result)
    return 1 if result.below else 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
