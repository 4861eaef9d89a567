"""`vla-zoo collect --env MetaWorld/reach --expert -n 20 -o demos/reach`: an expert's or a policy's episodes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vla_gym import make_vec
from vla_gym.errors import BadValue, VLAZooError
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark
from vla_gym.system.paths import check_folder
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.agents.agent import Agent
from zoo.cli.agent import is_server, plan_rollout, task_options
from zoo.cli.arguments import (
    DEFAULT_NUM_ENVS,
    OneLineParser,
    count,
    count_or_zero,
    flag_of,
    is_given,
    key_values,
    share,
    value_of,
)
from zoo.cli.main import check_alone, guarded
from zoo.cli.shared_flags import add_policy_arguments
from zoo.config.algorithm_configs import PPOConfig
from zoo.config.gym_packages import import_named_packages, packages_flag
from zoo.config.hyperparams import load_hyperparams
from zoo.config.run_config import ENV_OPTIONS, TRAINING_ONLY, benchmark_options, check_settings, env_options
from zoo.config.settings import Fraction, Range, defaults_of
from zoo.demonstrations.recorder import Attempt, Demonstration, all_attempts, demonstrate
from zoo.experts import expert_class
from zoo.files import quoted
from zoo.runs.progress import Progress

GAMMA, GAE_LAMBDA = defaults_of(PPOConfig)["gamma"], defaults_of(PPOConfig)["gae_lambda"]
"""Of the advantages that are recorded, without flags."""
MOST_ROUNDS = 100
"""How often every start state may be tried if no two tries are alike."""
STUDENT_SHARE = 0.5
"""Of the horizon, which a student plays at most."""
_UNUSED = (*TRAINING_ONLY, "chunk")
"""Options of an environment that do not change its images and protocol."""


def parser() -> OneLineParser:
    """Return the flags of `vla-zoo collect`."""
    p = OneLineParser("vla-zoo collect", "An expert's or a policy's episodes as a LeRobotDataset v3.0.")
    add_policy_arguments(p)
    p.add_argument(
        "--expert",
        action="store_true",
        help="the benchmark's scripted expert acts, in the images of the recipe of --policy (default: nano)",
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
    p.add_argument(
        "--draw-every",
        type=count,
        metavar="N",
        help="with --expert: images of every N-th step alone, which are what vla-zoo sft then learns from (default: 1)",
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
        type=value_of(Annotated[int, Range(low=0, high=51)]),
        default=0,
        metavar="N",
        help="what images may lose, x264's measure: 0 nothing (default), 16 a quarter of the size",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """Run the command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    check_alone("vla-zoo collect")
    import_named_packages(args)
    source = _source(args)

    from zoo.demonstrations.lerobot_writer import locked

    check_folder(Path(args.output), what="a dataset", flag="-o FOLDER")
    with locked(Path(args.output)):
        return _collect(args, source)


def _collect(args: argparse.Namespace, source: Source) -> int:
    from zoo.demonstrations.lerobot_writer import LeRobotWriter

    settings = {**source.settings, "keep_failures": args.keep_failures, "crf": args.crf}
    settings |= {"skip": args.skip} if args.skip else {}
    fps = round(source.benchmark.control_hz)
    writer = LeRobotWriter(Path(args.output), settings, fps=fps, crf=args.crf)
    done = writer.done
    attempts = all_attempts(source.benchmark.tasks, source.rounds)[args.skip :]
    if not attempts:
        raise BadValue(f"--skip {args.skip} leaves no start state of {source.env} to try; give a smaller number")
    progress = Progress(args.episodes, done=done.episodes, on=args.progress, unit="episode")
    print(f"starting {source.num_envs} simulators; the first episodes end after some seconds", flush=True)
    envs, record = source.open()
    try:
        while done.episodes < args.episodes and done.tried < len(attempts):
            try:
                played = record(attempts[done.tried : done.tried + source.num_envs], args.skip + done.tried)
            except VLAZooError as error:
                if not done.tried:
                    raise
                again = f"repeat the command to go on after {done.tried} start states"
                raise type(error)(f"{error}; {again}") from error
            wanted = args.episodes - done.episodes
            kept, tried = kept_episodes(played, wanted, keep_failures=args.keep_failures)
            writer.add(kept, tried=done.tried + tried)
            progress.to(done.episodes)
    finally:
        progress.close()
        envs.close()
    again = "" if source.varied_by is None else f"{source.varied_by} makes each try another"
    if not done.episodes:
        raise BadValue(
            f"none of the {done.tried} start states that were tried was solved, and nothing was written; "
            f"{again and f'{again}, '}--keep-failures keeps what was not solved, too"
        )
    print(f"{done.episodes} episodes, {done.frames} frames, from {done.tried} start states tried -> {args.output}")
    if done.episodes < args.episodes:
        said = f"all {len(attempts)} start states were tried: {done.episodes} of {args.episodes} episodes"
        print(said + (again and f". More need other tries: {again}"))
    else:
        packages = packages_flag(args.gym_packages)
        # An expert's images are drawn as these say, and so must be those that the policy acts on.
        params = f" -params {shlex.join(args.params)}" if args.expert and args.params else ""
        print(f"next:\n  vla-zoo sft{packages} --env {source.env} --dataset {quoted(args.output)}{params}")
    return 0


def kept_episodes(
    episodes: Sequence[Demonstration], wanted: int, *, keep_failures: bool
) -> tuple[list[Demonstration], int]:
    """Return the first `wanted` episodes to keep, and the number of start states tried for them.

    What a student ended before its expert took over has no frame and is not kept.
    """
    kept: list[Demonstration] = []
    for tried, episode in enumerate(episodes, start=1):
        if episode.length and (episode.success or keep_failures):
            kept.append(episode)
        if len(kept) == wanted:
            return kept, tried
    return kept, len(episodes)


# Where episodes come from: checked first, opened later ----------------------------------------------


Opened = tuple[VLAVectorEnv, Callable[[Sequence[Attempt], int], list[Demonstration]]]
"""Simulators, to be closed, and a function that records one episode for each attempt, in their order. It takes the
attempts, and the number of the first among all."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """An expert or a policy that acts; nothing heavy has been loaded for it."""

    env: str
    benchmark: Benchmark
    settings: Mapping[str, object]
    """JSON values that decide what an episode holds."""
    num_envs: int
    """N, the most episodes that are recorded at once."""
    rounds: int
    """How often each start state may be tried."""
    varied_by: str | None
    """Flag that makes each try another; None where nothing does."""
    open: Callable[[], Opened]


def _source(args: argparse.Namespace) -> Source:
    if args.env is not None:
        find_benchmark(args.env)
    led, alone = args.student is not None, args.run is None and args.student is None and not is_server(args.policy)
    example = f"Example: vla-zoo collect --env {args.env} --expert -n 20 -o demos/mine"
    for is_wrong, sentence in (
        (
            args.on_worker_error != "raise",
            "--on-worker-error: an episode that is lost cannot be collected; repeat the command to go on",
        ),
        (
            led and not args.expert,
            "--student needs --expert, which takes over from it; a policy alone is recorded with -i RUN",
        ),
        (
            args.draw_every is not None and (led or not args.expert),
            "--draw-every is for --expert alone; who acts by images needs them all",
        ),
        (args.student_share is not None and not led, "--student-share is for --student RUN; leave it out"),
        (args.env is None and alone, "--env is missing: say where to collect, e.g. --env MetaWorld/reach"),
        (
            not args.expert and args.run is None and args.policy is None,
            "say who acts: --expert (the benchmark's scripted expert), -i RUN or --policy NAME",
        ),
        (args.episodes is None, f"-n is missing. {example}"),
        (args.output is None, f"-o is missing. {example}"),
    ):
        if is_wrong:
            raise BadValue(sentence)
    if led:
        return student_source(args)
    return expert_source(args) if args.expert else policy_source(args)


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if is_given(args, name):
            raise BadValue(f"{flag_of(name)} {why}")


def expert_source(args: argparse.Namespace) -> Source:
    """Return the benchmark's scripted expert, in the images of a recipe and `-params`."""
    of_policies = ("run", "unnorm_key", "stochastic", "temperature", "top_k", "gamma", "gae_lambda")
    _refuse(args, of_policies, "is for policies; leave it or --expert out")
    varied = args.noise or args.wander
    if args.rounds and not varied:
        raise BadValue(
            "--rounds plays every start state again, and an expert without --noise or --wander does the same each time"
        )
    given = check_settings("ppo", key_values(args.params), "-params")
    if others := [name for name in given if name not in ENV_OPTIONS or name in _UNUSED]:
        raise BadValue(f"-params {others[0]}: collecting takes settings of the environment's images and protocol only")
    values = load_hyperparams("ppo", args.env, args.policy or "nano").values
    both = {**values.get("env_kwargs", {}), **given.get("env_kwargs", {})}
    options = env_options({**values, **given, "env_kwargs": both}, without=_UNUSED) | task_options(args)
    benchmark = find_benchmark(args.env, **benchmark_options(options))
    options |= {"draw_every": args.draw_every} if args.draw_every else {}
    make_expert, num_envs = expert_class(benchmark), args.num_envs or DEFAULT_NUM_ENVS

    def opened() -> Opened:
        rules = {"noise": args.noise, "seed": args.seed, "lead": args.wander or 0.0}
        envs = make_vec(args.env, num_envs, chunk=1, privileged=True, autoreset_mode="disabled", **options)
        return envs, lambda attempts, _: demonstrate(envs, make_expert, attempts, **rules)

    return Source(
        env=args.env,
        benchmark=benchmark,
        settings={**_settings(args.env, options, args), **({"wander": args.wander} if args.wander else {})},
        num_envs=num_envs,
        rounds=args.rounds or (MOST_ROUNDS if varied else 1),
        varied_by="--noise (e.g. --noise 0.2)",
        open=opened,
    )


def student_source(args: argparse.Namespace) -> Source:
    """Return the benchmark's scripted expert that takes over from a run, in the images the run was trained on."""
    _refuse(args, ("run", "policy", "wander", "gamma", "gae_lambda"), "does not go with --student RUN; leave it out")
    agent = plan_rollout(argparse.Namespace(**{**vars(args), "run": args.student}), episodes=None)
    benchmark = find_benchmark(agent.env, **benchmark_options(agent.env_options))
    make_expert = expert_class(benchmark)
    share = STUDENT_SHARE if args.student_share is None else args.student_share

    def opened() -> Opened:
        from zoo.agents.agent import open_agent
        from zoo.demonstrations.policy_recorder import PolicyActor

        student, envs = open_agent(agent, every_step=True, privileged=True)
        rules = {"noise": args.noise, "seed": args.seed, "lead": share, "chunk": student.conventions.chunk}

        def record(attempts: Sequence[Attempt], first: int) -> list[Demonstration]:
            actor = PolicyActor(student, first, deterministic=not agent.protocol.sample, seed=args.seed)
            return demonstrate(envs, make_expert, attempts, leader=actor.act, **rules)

        return envs, record

    leading = {"student": agent.policy.name, "student_share": share, "stochastic": agent.protocol.sample}
    return Source(
        env=agent.env,
        benchmark=benchmark,
        settings={**_settings(agent.env, agent.env_options, args), **leading, **_opened_with(agent)},
        num_envs=agent.num_envs,
        rounds=args.rounds or MOST_ROUNDS,
        varied_by="the step at which the expert takes over",
        open=opened,
    )


def policy_source(args: argparse.Namespace) -> Source:
    """Return a run's or another policy, in the images it was trained on."""
    if given := next((name for name in ("noise", "wander") if getattr(args, name)), None):
        raise BadValue(f"--{given} is for --expert; a policy's own sampling is --stochastic")
    agent = plan_rollout(args, episodes=None)
    advantages = {
        "gamma": GAMMA if args.gamma is None else args.gamma,
        "gae_lambda": GAE_LAMBDA if args.gae_lambda is None else args.gae_lambda,
    }

    def opened() -> Opened:
        from zoo.agents.agent import open_agent
        from zoo.demonstrations.policy_recorder import roll_out

        rules = {"deterministic": not agent.protocol.sample, "seed": args.seed, "values": agent.served is None}
        policy, envs = open_agent(agent, every_step=True)
        return envs, lambda attempts, first: roll_out(envs, policy, attempts, first, **rules, **advantages)

    settings = _settings(agent.env, agent.env_options, args)
    del settings["noise"]
    acting = {"policy": agent.policy.name, "stochastic": agent.protocol.sample, **_opened_with(agent)}
    return Source(
        env=agent.env,
        benchmark=find_benchmark(agent.env, **benchmark_options(agent.env_options)),
        settings={**settings, **acting, **advantages},
        num_envs=agent.num_envs,
        rounds=args.rounds or (MOST_ROUNDS if agent.protocol.sample else 1),
        varied_by="--stochastic" if agent.can_sample else None,
        open=opened,
    )


def _settings(env: str, options: Mapping[str, object], args: argparse.Namespace) -> dict[str, object]:
    """Return what decides an episode of any source, of the environment without what does not change its images."""
    ignored = ("num_workers", "on_worker_error")
    recorded = {name: value for name, value in sorted(options.items()) if name not in ignored}
    return {"env": env, "options": recorded, "noise": args.noise, "seed": args.seed}


def _opened_with(agent: Agent) -> dict[str, object]:
    return {"policy_kwargs": dict(agent.policy_kwargs)} if agent.policy_kwargs else {}


if __name__ == "__main__":
    raise SystemExit(guarded(run))
