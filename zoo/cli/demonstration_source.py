"""Who shows the episodes of a dataset, a scripted expert or a policy: checked first, opened later."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark
from zoo.cli.agent import plan_rollout, read_instructions
from zoo.cli.arguments import key_values
from zoo.config.hyperparams import load_hyperparams
from zoo.config.run_config import ENV_OPTIONS, benchmark_options, check_settings, env_options
from zoo.experts.base import expert_class

if TYPE_CHECKING:
    from vla_gym import VLAVectorEnv
    from zoo.demonstrations.recorder import Cell, Demonstration

TRAINING_ONLY = ("chunk", "group_size", "reward", "reward_scale", "on_worker_error")
"""Settings of an environment that say nothing about its pictures and protocol."""
DEFAULT_NUM_ENVS = 4
GAMMA, GAE_LAMBDA = 0.99, 0.95
"""Of the advantages that are recorded, where nothing else is said."""
MOST_ROUNDS = 100
"""How often every start state may be tried where no two tries are alike."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where episodes come from; nothing heavy has been loaded for it."""

    env: str
    """Environment id."""
    benchmark: Benchmark
    settings: Mapping[str, Any]
    """JSON values that decide what an episode holds."""
    num_envs: int
    """Slots, and so the most cells that can be shown at once."""
    rounds: int
    """How often each start state may be tried."""
    open: Callable[[], tuple[VLAVectorEnv, Callable[[Sequence[Cell], int], list[Demonstration]]]]
    """Makes the environment, which the caller closes, and what plays episodes in it: one from each of some cells, the
    first of which has the given number among all."""


def expert_source(args: argparse.Namespace) -> Source:
    """The benchmark's scripted expert, in the pictures of a recipe and `-params`."""
    for name in ("run", "unnorm_key", "stochastic", "gamma", "gae_lambda"):
        # A lambda of 0 is one, too.
        if all(getattr(args, name) is not nothing for nothing in (None, False)):
            raise BadValue(f"--{name.replace('_', '-')} is for policies; leave it or --expert out")
    options = _expert_options(args)
    benchmark = find_benchmark(args.env, **benchmark_options(options))
    make_expert = expert_class(benchmark)
    num_envs = args.num_envs or DEFAULT_NUM_ENVS

    def opened() -> tuple[VLAVectorEnv, Callable[[Sequence[Cell], int], list[Demonstration]]]:
        from vla_gym import make_vec
        from zoo.demonstrations.recorder import demonstrate

        envs = make_vec(args.env, num_envs, chunk=1, privileged=True, autoreset_mode="disabled", **options)
        return envs, lambda cells, _: demonstrate(envs, make_expert, cells, noise=args.noise, seed=args.seed)

    settings = {"env": args.env, "options": _recorded(options), "noise": args.noise, "seed": args.seed}
    return Source(
        env=args.env,
        benchmark=benchmark,
        settings=settings,
        num_envs=num_envs,
        rounds=MOST_ROUNDS if args.noise else 1,
        open=opened,
    )


def policy_source(args: argparse.Namespace) -> Source:
    """A run's or another policy, in the pictures it was trained on."""
    if args.noise:
        raise BadValue("--noise is for --expert; a policy's own sampling is --stochastic")
    gamma = GAMMA if args.gamma is None else args.gamma
    gae_lambda = GAE_LAMBDA if args.gae_lambda is None else args.gae_lambda
    plan = plan_rollout(args, episodes=None)
    options = {name: value for name, value in plan.env_options.items() if name != "on_worker_error"}

    def opened() -> tuple[VLAVectorEnv, Callable[[Sequence[Cell], int], list[Demonstration]]]:
        from zoo.cli.agent import open_rollout
        from zoo.demonstrations.rollouts import RolloutRules, roll_out

        rules = RolloutRules(
            deterministic=not args.stochastic,
            seed=args.seed,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        policy, envs = open_rollout(
            plan, device=args.device, num_threads=args.num_threads, seed=args.seed, every_step=True
        )
        return envs, lambda cells, first: roll_out(envs, policy, cells, first, rules)

    settings = {
        "env": plan.env,
        "options": _recorded(options),
        "policy": plan.policy,
        "stochastic": args.stochastic,
        "gamma": gamma,
        "gae_lambda": gae_lambda,
        "seed": args.seed,
    }
    return Source(
        env=plan.env,
        benchmark=find_benchmark(plan.env, **benchmark_options(options)),
        settings=settings,
        num_envs=plan.num_envs,
        rounds=MOST_ROUNDS if args.stochastic else 1,
        open=opened,
    )


def _expert_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `make_vec` from the recipe and `-params`; raises for what is no setting."""
    if args.env is None:
        raise BadValue("--env is missing: say where the expert is to act, e.g. --env MetaWorld/reach")
    values = {**load_hyperparams("ppo", args.env, args.policy or "nano").values}
    given = check_settings("ppo", key_values(args.params), "-params")
    for name in given:
        if name not in ENV_OPTIONS or name in TRAINING_ONLY:
            raise BadValue(
                f"-params {name}: collecting takes settings of the environment's pictures and protocol only"
            )
    both = {**values.get("env_kwargs", {}), **given.get("env_kwargs", {})}
    options = env_options({**values, **given, "env_kwargs": both}, without=TRAINING_ONLY)
    if args.split is not None:
        options["split"] = args.split
    if args.instructions is not None:
        options["instructions"] = read_instructions(Path(args.instructions))
    return options


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(options.items()) if name != "num_workers"}
