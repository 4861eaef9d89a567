"""The source of a dataset's episodes, a scripted expert or a policy: checked first, opened later."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.agents.agent import Agent
from zoo.cli.agent import plan_rollout, task_options
from zoo.cli.arguments import DEFAULT_NUM_ENVS, flag_of, is_given, key_values
from zoo.config.algorithm_configs import PPOConfig
from zoo.config.hyperparams import load_hyperparams
from zoo.config.run_config import ENV_OPTIONS, TRAINING_ONLY, benchmark_options, check_settings, env_options
from zoo.config.settings import defaults_of
from zoo.demonstrations.recorder import Attempt, Demonstration
from zoo.experts import expert_class

GAMMA, GAE_LAMBDA = defaults_of(PPOConfig)["gamma"], defaults_of(PPOConfig)["gae_lambda"]
"""Of the advantages that are recorded, without flags."""
MOST_ROUNDS = 100
"""How often every start state may be tried if no two tries are alike."""
STUDENT_SHARE = 0.5
"""Of the horizon, which a student plays at most."""
_UNUSED = (*TRAINING_ONLY, "chunk")
"""Options of an environment that do not change its pictures and protocol."""


class Closeable(Protocol):
    """Holds simulators."""

    def close(self) -> None:
        """End the simulators."""


Opened = tuple[Closeable, Callable[[Sequence[Attempt], int, int], list[Demonstration]]]
"""Simulators, which the caller closes, and a function that records episodes of the first of some attempts, in their
order. It takes the attempts, the number of the first among all, and how many more episodes the dataset is to hold."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where episodes come from; nothing heavy has been loaded for it."""

    env: str
    """Environment id."""
    benchmark: Benchmark
    settings: Mapping[str, Any]
    """JSON values that decide what an episode holds."""
    num_envs: int
    """N, the most episodes that are recorded at once."""
    rounds: int
    """How often each start state may be tried."""
    varied_by: str | None
    """Flag that makes each try another; None where nothing does."""
    open: Callable[[], Opened]


def expert_source(args: argparse.Namespace) -> Source:
    """Return the benchmark's scripted expert, in the pictures of a recipe and `-params`."""
    for name in ("run", "unnorm_key", "stochastic", "temperature", "top_k", "gamma", "gae_lambda"):
        if is_given(args, name):
            raise BadValue(f"{flag_of(name)} is for policies; leave it or --expert out")
    varied = args.noise or args.wander
    if args.rounds and not varied:
        raise BadValue(
            "--rounds plays every start state again, and an expert without --noise or --wander does the same each time"
        )
    options = _expert_options(args)
    benchmark = find_benchmark(args.env, **benchmark_options(options))
    make_expert = expert_class(benchmark)
    num_envs = args.num_envs or DEFAULT_NUM_ENVS

    def opened() -> Opened:
        from vla_gym import make_vec
        from zoo.demonstrations.recorder import demonstrate
        from zoo.demonstrations.render_on_success import RenderOnSuccess
        from zoo.demonstrations.take_over import wander

        rules = {"noise": args.noise, "seed": args.seed}
        every_step: dict[str, Any] = {"chunk": 1, "privileged": True, "autoreset_mode": "disabled"}

        def play(envs: VLAVectorEnv, tries: Sequence[Attempt]) -> list[Demonstration]:
            if args.wander:
                return wander(envs, make_expert, tries, share=args.wander, **rules)
            return demonstrate(envs, make_expert, tries, **rules)

        def open_without_cameras() -> VLAVectorEnv:
            own = benchmark_options(options)
            others = {name: value for name, value in options.items() if name not in (*own, "wrist_camera")}
            return make_vec(replace(benchmark, cameras=()), num_envs, **others, **every_step)

        envs = make_vec(args.env, num_envs, **every_step, **options)
        if args.keep_failures:
            return envs, lambda tries, *_: play(envs, tries[:num_envs])
        solved = RenderOnSuccess(envs, open_without_cameras, play)
        return solved, lambda tries, _, wanted: solved.record(tries, wanted)

    settings = {"env": args.env, "options": _recorded(options), "noise": args.noise, "seed": args.seed}
    settings |= {"wander": args.wander} if args.wander else {}
    return Source(
        env=args.env,
        benchmark=benchmark,
        settings=settings,
        num_envs=num_envs,
        rounds=args.rounds or (MOST_ROUNDS if varied else 1),
        varied_by="--noise (e.g. --noise 0.2)",
        open=opened,
    )


def student_source(args: argparse.Namespace) -> Source:
    """Return the benchmark's scripted expert that takes over from a run, in the pictures the run was trained on."""
    for name in ("run", "policy", "wander", "gamma", "gae_lambda"):
        if getattr(args, name) is not None:
            raise BadValue(f"{flag_of(name)} does not go with --student RUN; leave it out")
    plan = plan_rollout(argparse.Namespace(**{**vars(args), "run": args.student}), episodes=None)
    options = {name: value for name, value in plan.env_options.items() if name != "on_worker_error"}
    benchmark = find_benchmark(plan.env, **benchmark_options(options))
    make_expert = expert_class(benchmark)
    share = STUDENT_SHARE if args.student_share is None else args.student_share

    def opened() -> Opened:
        from zoo.agents.agent import open_agent
        from zoo.demonstrations.take_over import take_over

        student, envs = open_agent(plan, every_step=True, privileged=True)
        rules = {"deterministic": not plan.protocol.sample, "share": share, "noise": args.noise, "seed": args.seed}
        return envs, lambda tries, first, _: take_over(
            envs, student, make_expert, tries[: plan.num_envs], first, **rules
        )

    settings = {
        "env": plan.env,
        "options": _recorded(options),
        "noise": args.noise,
        "seed": args.seed,
        "student": plan.policy.name,
        "student_share": share,
        "stochastic": plan.protocol.sample,
        **_opened_with(plan),
    }
    return Source(
        env=plan.env,
        benchmark=benchmark,
        settings=settings,
        num_envs=plan.num_envs,
        rounds=args.rounds or MOST_ROUNDS,
        varied_by="the step at which the expert takes over",
        open=opened,
    )


def policy_source(args: argparse.Namespace) -> Source:
    """Return a run's or another policy, in the pictures it was trained on."""
    for flag in ("noise", "wander"):
        if getattr(args, flag):
            raise BadValue(f"--{flag} is for --expert; a policy's own sampling is --stochastic")
    gamma = GAMMA if args.gamma is None else args.gamma
    gae_lambda = GAE_LAMBDA if args.gae_lambda is None else args.gae_lambda
    plan = plan_rollout(args, episodes=None)
    options = {name: value for name, value in plan.env_options.items() if name != "on_worker_error"}

    def opened() -> Opened:
        from zoo.agents.agent import open_agent
        from zoo.demonstrations.policy_recorder import RolloutRules, roll_out

        rules = RolloutRules(
            deterministic=not plan.protocol.sample,
            seed=args.seed,
            gamma=gamma,
            gae_lambda=gae_lambda,
            values=plan.served is None,
        )
        policy, envs = open_agent(plan, every_step=True)
        return envs, lambda tries, first, _: roll_out(envs, policy, tries[: plan.num_envs], first, rules)

    settings = {
        "env": plan.env,
        "options": _recorded(options),
        "policy": plan.policy.name,
        "stochastic": plan.protocol.sample,
        **_opened_with(plan),
        "gamma": gamma,
        "gae_lambda": gae_lambda,
        "seed": args.seed,
    }
    return Source(
        env=plan.env,
        benchmark=find_benchmark(plan.env, **benchmark_options(options)),
        settings=settings,
        num_envs=plan.num_envs,
        rounds=args.rounds or (MOST_ROUNDS if plan.protocol.sample else 1),
        varied_by="--stochastic" if plan.can_sample else None,
        open=opened,
    )


def _expert_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `make_vec` from the recipe and `-params`."""
    if args.env is None:
        raise BadValue("--env is missing: say where the expert is to act, e.g. --env MetaWorld/reach")
    values = {**load_hyperparams("ppo", args.env, args.policy or "nano").values}
    given = check_settings("ppo", key_values(args.params), "-params")
    for name in given:
        if name not in ENV_OPTIONS or name in _UNUSED:
            raise BadValue(f"-params {name}: collecting takes settings of the environment's pictures and protocol only")
    both = {**values.get("env_kwargs", {}), **given.get("env_kwargs", {})}
    options = env_options({**values, **given, "env_kwargs": both}, without=_UNUSED)
    return options | task_options(args)


def _opened_with(plan: Agent) -> dict[str, Any]:
    """Return the settings of how the policy acts, such as its temperature; empty where none was given."""
    return {"policy_kwargs": dict(plan.policy_kwargs)} if plan.policy_kwargs else {}


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(options.items()) if name != "num_workers"}
