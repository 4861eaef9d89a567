"""Flags become a policy and the environment it acts in, checked, for the commands that roll a policy out.

`zoo.cli.open_agent` then loads the policy and starts the simulators.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark, StartState
from vla_gym.vector.protocol import with_instructions
from vla_policies.conventions import check_lengths
from vla_policies.registry import FAMILIES
from zoo.cli.acting import (
    can_sample,
    check_acting,
    given_settings,
    open_run,
    options_to_act,
    policy_kwargs_of,
    protocol_of,
)
from zoo.cli.arguments import DEFAULT_NUM_ENVS
from zoo.cli.policy_choice import PolicyChoice, resolve_policy
from zoo.cli.recipe import recipe_to_act, settings_to_act
from zoo.cli.served_agent import Served, find_server, is_server, refuse_server_flags
from zoo.config.evaluation_options import carried_options
from zoo.config.gym_packages import import_named_packages
from zoo.config.run_config import benchmark_options, env_options
from zoo.evaluation.evaluator import choose_start_states, episodes_of
from zoo.evaluation.protocol import EvaluationProtocol
from zoo.hub.download import is_remote
from zoo.runs.folder import folder_name
from zoo.runs.lookup import policy_folder
from zoo.runs.shipped_agents import is_shipped
from zoo.yaml_text import read_yaml_mapping


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """A policy and its environment, checked; nothing heavy has been loaded for it."""

    env: str
    """Environment id."""
    policy: str
    """Family name or checkpoint folder."""
    suite: str | None
    """Suite of the tasks, where it is one."""
    policy_kwargs: Mapping[str, Any]
    """Keyword arguments of `VLAPolicy.from_pretrained` that say how the policy is opened."""
    protocol: EvaluationProtocol
    """How it acts, and how often."""
    env_options: Mapping[str, Any]
    """Keyword arguments of `make_vec`, those of training left out."""
    num_envs: int
    """N, environments side by side."""
    start_states: tuple[StartState, ...]
    """Where its episodes begin, task-major."""
    output_folder: Path | None
    """Run folder the policy comes from, if it comes from one here; results belong there."""
    can_sample: bool = True
    """Whether its actions can be sampled."""
    departures: tuple[str, ...] = ()
    """Differences from the run's own protocol and policy, as words for a file name; empty without a run."""
    server: Served | None = None
    """Where the policy is served, if it is not loaded here."""
    device: str
    """Name of the policy's torch device."""
    num_threads: int | None
    """Torch CPU threads; None leaves torch's own choice."""
    seed: int
    """Seed of sampled actions."""

    @property
    def episodes(self) -> tuple[StartState, ...]:
        """The start state of each episode, in the order they are played."""
        return tuple(start for start, _ in episodes_of(self.start_states, self.protocol.rounds))

    def named(self, stem: str) -> str:
        """Return `stem` and the departures: the name of a file in the run folder, without its suffix."""
        return "_".join([stem, *self.departures])


OF_POLICY = ("chunk", "image_size", "wrist_camera", "state", "action_units", "aspect")
"""Options of an environment that say what a policy sees and what its actions mean."""


def plan_rollout(
    args: argparse.Namespace,
    *,
    episodes: int | None,
    n_timesteps: int | None = None,
    unplayed: bool = False,
    as_published: bool = False,
) -> RolloutPlan:
    """Resolve the selectors of `zoo.cli.shared_flags.add_policy_arguments`.

    Args:
        args: parsed flags.
        episodes: number of start states; None means the whole grid.
        n_timesteps: instead of `episodes`, as many as last so many simulator steps when none is solved.
        unplayed: a run acts from start states that it was not trained on, where there are some and no split is named.
        as_published: of the environment's options of the run or the recipe only `OF_POLICY` apply, and a checkpoint is
            read by the program of the recipe.
    """
    if (args.run is None) == (args.policy is None):
        raise BadValue(
            "give either -i RUN (a trained policy) or --policy NAME (a family or a folder), not both or none"
        )
    import_named_packages(args)
    given = given_settings(args.params)
    kwargs = policy_kwargs_of(args, given)
    protocol = protocol_of(args, given, kwargs)
    if args.run is None:
        agent = _family_or_folder(args, kwargs, as_published=as_published)
    else:
        agent = _trained_agent(args, kwargs)
    if agent.server is None:
        refuse_server_flags(args)
    trained, options = _environments(args, given, agent, unplayed=unplayed, as_published=as_published)
    benchmark = find_benchmark(agent.env, **benchmark_options(options))
    with_instructions(benchmark, options.get("instructions", {}))  # raises for a wrong name
    _check_lengths(agent.policy, benchmark, reads_state=options.get("state", True))
    if agent.server is None:
        check_acting(agent.policy, protocol, kwargs)
    else:
        agent.server.declaration.check_environment(benchmark, options)
        agent.server.check_acting(protocol)
    if n_timesteps is not None:
        grid = sum(task.num_trials for task in benchmark.tasks)
        episodes = min(grid, -(-n_timesteps // max(task.horizon for task in benchmark.tasks)))
    start_states = choose_start_states(benchmark.tasks, episodes)
    words = [*_changes(trained, options, args), *_decoding_words(protocol, given, args.seed)]
    return RolloutPlan(
        env=agent.env,
        policy=agent.policy.name,
        suite=benchmark.suite,
        policy_kwargs=agent.policy_kwargs,
        protocol=replace(protocol, start_states=episodes, split=options.get("split")),
        env_options=options,
        num_envs=min(args.num_envs or DEFAULT_NUM_ENVS, len(start_states) * protocol.rounds),
        start_states=tuple(start_states),
        output_folder=agent.output_folder,
        can_sample=can_sample(agent.policy),
        departures=(*agent.departures, *words) if args.run is not None else (),
        server=agent.server,
        device=args.device,
        num_threads=args.num_threads,
        seed=args.seed,
    )


@dataclass(frozen=True, kw_only=True)
class _Agent:
    """A policy, where it acts, and the options of the environment it was trained in."""

    env: str
    policy: PolicyChoice
    env_options: Mapping[str, Any]
    policy_kwargs: Mapping[str, Any]
    output_folder: Path | None = None
    departures: Sequence[str] = ()
    server: Served | None = None


def _environments(
    args: argparse.Namespace, given: Mapping[str, Any], agent: _Agent, *, unplayed: bool, as_published: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the environment that the agent knows, and of the one it acts in; see `plan_rollout`."""
    trained = {**agent.env_options, **agent.policy.env_options}
    if as_published:
        trained = {name: value for name, value in trained.items() if name in OF_POLICY}
    asked = {**env_options(given), "on_worker_error": args.on_worker_error, **task_options(args)}
    options = options_to_act(trained) | asked
    if unplayed and args.run is not None:
        practised = trained.get("split", "train")
        if (split := unplayed_split(agent.env, {**options, "split": practised})) != practised:
            trained |= {"split": split}
            options |= {"split": asked.get("split", split)}
    return trained, options


def _trained_agent(args: argparse.Namespace, kwargs: Mapping[str, Any]) -> _Agent:
    """Return the agent of `-i`, a run here or on the Hub."""
    run, folder = open_run(args.run)
    config = run.config()
    env = args.env or config.env
    departures = [] if env == config.env else [folder_name(env)]
    if folder.resolve() != policy_folder(str(run.path)).resolve():
        departures.append(folder.name)
    return _Agent(
        env=env,
        policy=resolve_policy(str(folder), suite=find_benchmark(env).suite, settings=kwargs, to_act=True),
        env_options=config.env_options if env == config.env else carried_options(env, config.env_options),
        policy_kwargs=kwargs,
        output_folder=None if is_remote(args.run) or is_shipped(run.path) else run.path,
        departures=departures,
    )


def _family_or_folder(args: argparse.Namespace, kwargs: Mapping[str, Any], *, as_published: bool) -> _Agent:
    """Return the agent of `--policy` in the environment of its recipe, or of its server's declaration."""
    if is_server(args.policy):
        served = find_server(args, kwargs)
        return _Agent(
            env=served.env,
            policy=served.choice,
            env_options=served.env_options,
            policy_kwargs=kwargs,
            server=served,
        )
    if args.env is None:
        raise BadValue("--env is missing: say where to roll the policy out, e.g. --env LIBERO-Spatial")
    env = args.env
    by_recipe = as_published or args.policy in FAMILIES
    policy = resolve_policy(
        args.policy,
        suite=find_benchmark(env).suite,
        settings=kwargs,
        to_act=True,
        start_of=lambda family: recipe_to_act(env, family, by_recipe=by_recipe).get("policy", {}),
        action_dim=find_benchmark(env).action_dim,
    )
    values = settings_to_act(env, policy, kwargs, by_recipe=by_recipe)
    return _Agent(env=env, policy=policy, env_options=env_options(values), policy_kwargs=values["policy_kwargs"])


def unplayed_split(env: str, options: Mapping[str, Any], split: str = "test") -> str:
    """Return `split` where it holds start states that a run trained by these options has not seen, else the run's own.

    The own split stays where the run was trained on another than "train", where all splits have the same start states
    (LIBERO's published ones), and where `split` has other tasks (Plate25's test split has other objects).
    """
    own = str(options["split"])
    if own != "train":
        return own
    practised = find_benchmark(env, **benchmark_options(options))
    try:
        other = find_benchmark(env, **benchmark_options({**options, "split": split}))
    except VLAZooError:  # a benchmark of the user's own without one
        return own
    same_tasks = other.tasks == practised.tasks
    return split if same_tasks and other.simulator_kwargs != practised.simulator_kwargs else own


def task_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the environment in `--split` and `--instructions`, which stand above `-params`."""
    options: dict[str, Any] = {} if args.split is None else {"split": args.split}
    if args.instructions is not None:
        path = Path(args.instructions)
        options["instructions"] = read_yaml_mapping(path, "task names to instructions", f"--instructions {path}")
    return options


def _check_lengths(policy: PolicyChoice, benchmark: Benchmark, *, reads_state: bool) -> None:
    """Raise `BadValue` for a policy that was made for other states or actions, before simulators start."""
    check_lengths(
        policy.lengths,
        {"state_dim": benchmark.state_dim if reads_state else 0, "action_dim": benchmark.action_dim},
    )


def _changes(own: Mapping[str, Any], options: Mapping[str, Any], args: argparse.Namespace) -> list[str]:
    """Return the options that differ from the run's `own`, each as a word for a file name."""
    own = {"split": "train", "instructions": {}, **own}
    words = []
    for name, value in options.items():
        if name == "on_worker_error" or value == own.get(name):
            continue
        if name == "instructions":
            words.append("instructions" if args.instructions is None else Path(args.instructions).stem)
        else:
            words.append(str(value) if name == "split" else f"{name}-{value}")
    return [_file_word(word) for word in words]


def _decoding_words(protocol: EvaluationProtocol, given: Mapping[str, Any], seed: int) -> list[str]:
    """Return how actions are drawn where it is not as in the run, and their seed, as words for a file name."""
    words = ["stochastic"] if protocol.sample else []
    policy = {**given.get("policy_kwargs", {}), **protocol.sampling}
    words += [f"{name}-{value}" for name, value in policy.items()]
    words += [f"rounds-{protocol.rounds}"] if protocol.rounds > 1 else []
    words += [f"seed-{seed}"] if words and seed else []
    return [_file_word(word) for word in words]


def _file_word(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
