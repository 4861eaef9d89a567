"""Flags become an agent, checked, for the commands that roll a policy out; `zoo.agents.agent` opens it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.registry import find_benchmark
from vla_gym.vector.protocol import with_instructions
from vla_policies.registry import FAMILIES
from vla_policies.resolver import PolicyRef
from zoo.agents.agent import Agent
from zoo.agents.recipe import (
    check_acting,
    find_policy,
    policy_env_options,
    recipe_to_act,
    settings_to_act,
)
from zoo.cli.arguments import DEFAULT_NUM_ENVS, flag_of, key_values
from zoo.config.evaluation import EvaluationProtocol, carried_options
from zoo.config.gym_packages import import_named_packages, import_packages_of
from zoo.config.run_config import (
    ENV_OPTIONS,
    TRAINING_ONLY,
    PolicyOptions,
    benchmark_options,
    env_conventions,
    env_options,
    with_checked_families,
)
from zoo.config.settings import Options, Settings, annotations_of, check_fields
from zoo.evaluation.evaluator import choose_start_states
from zoo.hub.download import download_run, is_remote
from zoo.runs.folder import ARGS_FILE, RunFolder, folder_name
from zoo.runs.lookup import find_run, is_shipped, policy_folder
from zoo.yaml_text import read_yaml_mapping

if TYPE_CHECKING:  # it brings a protocol's packages
    from zoo.serving.client import RemotePolicy

OF_LEARNING = ("value_lr", "optimizer_kwargs")
"""Settings of a policy that do not apply where it only acts."""
_POLICY_SETTINGS = {
    **{name: kind for name, kind in annotations_of(PolicyOptions).items() if name not in OF_LEARNING},
    "dtype": Literal["auto", "float32", "bfloat16"],
}
"""Keyword arguments of `VLAPolicy.from_pretrained`, of which `dtype` says how weights are held."""
_SETTINGS = {
    **{name: kind for name, kind in ENV_OPTIONS.items() if name not in TRAINING_ONLY},
    "policy_kwargs": Options,
}

OF_POLICY = ("chunk", "image_size", "wrist_camera", "state", "action_units", "aspect")
"""Options of an environment that say what a policy sees and what its actions mean."""


def plan_rollout(
    args: argparse.Namespace,
    *,
    episodes: int | None,
    n_timesteps: int | None = None,
    unplayed: bool = False,
    as_published: bool = False,
) -> Agent:
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
        chosen = _family_or_folder(args, kwargs, as_published=as_published)
    else:
        chosen = _trained_agent(args, kwargs)
    trained, options = _environments(args, given, chosen, unplayed=unplayed, as_published=as_published)
    benchmark, policy = find_benchmark(chosen.env, **benchmark_options(options)), chosen.policy
    with_instructions(benchmark, options.get("instructions", {}))  # raises for a wrong name
    if isinstance(policy, PolicyRef):
        for name in ("token_file", "server_conf"):
            if getattr(args, name) is not None:
                raise BadValue(f"{flag_of(name)} is for a policy server; give --policy ws://HOST:PORT or leave it out")
        check_acting(policy, protocol, kwargs)
        if policy.folder is not None:
            policy = policy.fitted(env_conventions(benchmark, options), benchmark.suite)
    else:
        policy.declaration.check_environment(benchmark, options)
        policy.check_acting(protocol)
    if n_timesteps is not None:
        grid = sum(task.num_trials for task in benchmark.tasks)
        episodes = min(grid, -(-n_timesteps // max(task.horizon for task in benchmark.tasks)))
    start_states = choose_start_states(benchmark.tasks, episodes)
    words = [*_changes(trained, options, args), *_decoding_words(protocol, given, args.seed)]
    return Agent(
        env=chosen.env,
        policy=policy,
        policy_kwargs=chosen.policy_kwargs,
        protocol=replace(protocol, start_states=episodes, split=options.get("split")),
        env_options=options,
        num_envs=min(args.num_envs or DEFAULT_NUM_ENVS, len(start_states) * protocol.rounds),
        start_states=tuple(start_states),
        output_folder=chosen.output_folder,
        departures=(*chosen.departures, *words) if args.run is not None else (),
        device=args.device,
        num_threads=args.num_threads,
        seed=args.seed,
    )


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """A policy, where it acts, and the options of the environment it was trained in."""

    env: str
    policy: PolicyRef | RemotePolicy
    env_options: Options
    policy_kwargs: Options
    output_folder: Path | None = None
    departures: Sequence[str] = ()


def _environments(
    args: argparse.Namespace, given: Mapping[str, object], chosen: _Chosen, *, unplayed: bool, as_published: bool
) -> tuple[Settings, Settings]:
    """Return the options of the environment that the agent knows, and of the one it acts in; see `plan_rollout`."""
    trained = dict(chosen.env_options)
    if isinstance(chosen.policy, PolicyRef):
        trained |= policy_env_options(chosen.policy)
    if as_published:
        trained = {name: value for name, value in trained.items() if name in OF_POLICY}
    asked = {**env_options(given), "on_worker_error": args.on_worker_error, **task_options(args)}
    options = options_to_act(trained) | asked
    if unplayed and args.run is not None:
        practised = trained.get("split", "train")
        if (split := unplayed_split(chosen.env, {**options, "split": practised})) != practised:
            trained |= {"split": split}
            options |= {"split": asked.get("split", split)}
    return trained, options


def _trained_agent(args: argparse.Namespace, kwargs: Mapping[str, object]) -> _Chosen:
    run, folder = open_run(args.run)
    config = run.config()
    env = args.env or config.env
    departures = [] if env == config.env else [folder_name(env)]
    if folder.resolve() != policy_folder(str(run.path)).resolve():
        departures.append(folder.name)
    return _Chosen(
        env=env,
        policy=find_policy(str(folder), kwargs, benchmark=find_benchmark(env), trained=True, to_act=True)[0],
        env_options=config.env_options if env == config.env else carried_options(env, config.env_options),
        policy_kwargs=kwargs,
        output_folder=None if is_remote(args.run) or is_shipped(run.path) else run.path,
        departures=departures,
    )


def _family_or_folder(args: argparse.Namespace, kwargs: Mapping[str, object], *, as_published: bool) -> _Chosen:
    if is_server(args.policy):
        server = find_server(args, kwargs)
        env = args.env or server.declaration.env
        if env is None:
            raise BadValue(
                "--env is missing: the server does not name one. Say where to act, e.g. --env LIBERO-Spatial"
            )
        own = server.declaration.options()
        options = own if env == server.declaration.env else carried_options(env, own)
        return _Chosen(env=env, policy=server, env_options=options, policy_kwargs=kwargs)
    if args.env is None:
        raise BadValue("--env is missing: say where to roll the policy out, e.g. --env LIBERO-Spatial")
    env = args.env
    by_recipe = as_published or args.policy in FAMILIES
    policy, own = find_policy(
        args.policy,
        kwargs,
        lambda family: recipe_to_act(env, family, by_recipe=by_recipe).get("policy", {}),
        benchmark=find_benchmark(env),
        to_act=True,
    )
    values = settings_to_act(env, policy, own, kwargs, by_recipe=by_recipe)
    policy = policy.read_by(values["policy_kwargs"])
    return _Chosen(env=env, policy=policy, env_options=env_options(values), policy_kwargs=values["policy_kwargs"])


# A policy server ------------------------------------------------------------------------------------------


def is_server(name: str | None) -> bool:
    """Whether a policy's name is the address of a policy server."""
    return name is not None and name.startswith(("ws://", "wss://"))


def find_server(args: argparse.Namespace, policy_kwargs: Mapping[str, object]) -> RemotePolicy:
    """Ask the server at `--policy` what it serves.

    Raises `BadValue` for settings of a policy, which are its server's, and `ServerFailed` for a server that does not
    answer.
    """
    from zoo.serving.wire import require_wire_packages

    require_wire_packages()
    from zoo.serving.client import RemotePolicy, read_declaration, server_address

    if policy_kwargs:
        raise BadValue(
            f"{', '.join(policy_kwargs)}: settings of a policy are its server's, {args.policy}; leave them out"
        )
    address = server_address(args.policy, conf_file=args.server_conf, token_file=args.token_file)
    return RemotePolicy(address, read_declaration(address))


# Flags ----------------------------------------------------------------------------------------------------


def open_run(path: str) -> tuple[RunFolder, Path]:
    """Return the run of `-i`, here or on the Hub, and the folder of its policy; imports the packages it needs."""
    if is_remote(path):  # a published run imports nothing unasked
        run = download_run(path)
        return run, policy_folder(str(run.path))
    run = find_run(path)
    import_packages_of(run.path / ARGS_FILE)
    return run, policy_folder(path)


def options_to_act(options: Mapping[str, object]) -> Settings:
    """Return a trained environment's options, but for those that change nothing where its policy only acts."""
    unused = (*TRAINING_ONLY, "num_workers")
    return {name: value for name, value in options.items() if name not in unused}


def given_settings(params: Sequence[str]) -> Settings:
    """Return `-params` of a command that rolls a policy out, checked.

    They are settings of the environment, and `policy_kwargs`, which may also say where the weights go
    (`dtype`). Raises `UnknownName` or `BadValue` for others.
    """
    given = check_fields(_SETTINGS, key_values(params), "-params")
    if "policy_kwargs" in given:
        given["policy_kwargs"] = check_fields(_POLICY_SETTINGS, given["policy_kwargs"], "-params: policy_kwargs")
    return with_checked_families(given, "-params")


def policy_kwargs_of(args: argparse.Namespace, given: Options) -> Settings:
    """Return `policy_kwargs` of `given_settings`, with the flags that say the same; raises where they disagree."""
    kwargs = dict(given.get("policy_kwargs", {}))
    for name in ("unnorm_key", "temperature", "top_k"):
        flag = getattr(args, name, None)
        if flag is not None and kwargs.setdefault(name, flag) != flag:
            raise BadValue(
                f"{flag_of(name)} {flag} and -params policy_kwargs:{{{name}: {kwargs[name]}}} disagree; leave one out"
            )
    return kwargs


def protocol_of(args: argparse.Namespace, given: Options, kwargs: Options) -> EvaluationProtocol:
    """Return how success is to be measured, by the results of `given_settings` and `policy_kwargs_of`.

    The flags `--temperature` and `--top-k` ask for sampled actions. The same settings in `policy_kwargs` do not: they
    only say how the policy samples, and which actions are nearest the mean.
    """
    drawn = [name for name in ("temperature", "top_k") if getattr(args, name) is not None]
    if drawn and args.deterministic:
        raise BadValue(f"{flag_of(drawn[0])} is of sampled actions, --deterministic takes none; leave one of them out")
    sample = args.stochastic or bool(drawn)
    return EvaluationProtocol(
        sample=sample,
        temperature=kwargs.get("temperature") if sample else None,
        top_k=kwargs.get("top_k") if sample else None,
        rounds=args.rounds or 1,
        start_states=None,
        split=given.get("split"),
        env_kwargs=given.get("env_kwargs", {}),
    )


def unplayed_split(env: str, options: Mapping[str, object], split: str = "test") -> str:
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


def task_options(args: argparse.Namespace) -> Settings:
    """Return the options of the environment in `--split` and `--instructions`, which stand above `-params`."""
    options: Settings = {} if args.split is None else {"split": args.split}
    if args.instructions is not None:
        path = Path(args.instructions)
        options["instructions"] = read_yaml_mapping(path, "task names to instructions", f"--instructions {path}")
    return options


def _changes(own: Mapping[str, object], options: Mapping[str, object], args: argparse.Namespace) -> list[str]:
    """Return the options that differ from the run's `own`, each as a word for a file name."""
    own = {"split": "train", "instructions": {}, **own}
    changed = {name: f"{name}-{value}" for name, value in options.items() if value != own.get(name)}
    words = {"split": options.get("split"), "instructions": Path(args.instructions or "instructions").stem}
    return [_file_word(str(words.get(name, word))) for name, word in changed.items() if name != "on_worker_error"]


def _decoding_words(protocol: EvaluationProtocol, given: Options, seed: int) -> list[str]:
    """Return how actions are drawn where it is not as in the run, and their seed, as words for a file name."""
    words = ["stochastic"] if protocol.sample else []
    policy = {**given.get("policy_kwargs", {}), **protocol.sampling}
    words += [f"{name}-{value}" for name, value in policy.items()]
    words += [f"rounds-{protocol.rounds}"] if protocol.rounds > 1 else []
    words += [f"seed-{seed}"] if words and seed else []
    return [_file_word(word) for word in words]


def _file_word(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
