"""`vla-zoo serve -i logs/ppo/LIBERO-Object_1`: a policy for robots and other simulators, over WebSockets."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from vla_gym.errors import BadValue, check_known, os_reason
from vla_gym.registry import find_benchmark
from vla_policies.registry import FAMILIES
from zoo.agents.recipe import check_acting, find_policy, policy_env_options, recipe_to_act, settings_to_act
from zoo.cli.agent import given_settings, open_run, options_to_act, policy_kwargs_of
from zoo.cli.arguments import OneLineParser, count, seed, value_of
from zoo.cli.main import guarded
from zoo.cli.shared_flags import add_device_arguments, add_gym_packages_argument, add_params_argument
from zoo.config.evaluation import EvaluationProtocol
from zoo.config.gym_packages import import_named_packages
from zoo.config.run_config import benchmark_options, env_options
from zoo.config.settings import Options, Range, Settings
from zoo.hub.download import is_remote
from zoo.runs.evaluations import policy_line
from zoo.runs.folder import CONFIG_FILE, holds_policy
from zoo.runs.lookup import local_or_shipped
from zoo.serving.declaration import ServerSettings, ServicePlan, read_token
from zoo.serving.protocols import renamed
from zoo.serving.wire import require_wire_packages

LOGGER = logging.getLogger(__name__)


def parser() -> OneLineParser:
    """The flags of `vla-zoo serve`."""
    p = OneLineParser("vla-zoo serve", "Serve a policy over WebSockets, to openpi's or vla-eval's clients.")
    p.add_argument("-i", "--run", metavar="RUN", help="run folder, checkpoint folder, or the Hub id of a run")
    p.add_argument("--policy", metavar="NAME", help="family name, folder or Hub id of a published model, instead of -i")
    p.add_argument("--env", metavar="ID", help="environment whose conventions hold (default: the run's own)")
    p.add_argument("--unnorm-key", metavar="KEY", help="data set whose action statistics a published checkpoint uses")
    add_params_argument(p, "how the policy is opened, e.g. 'policy_kwargs:{backbone_kwargs: {head: tokens}}'")
    p.add_argument(
        "--protocol", metavar="{openpi,vla-eval}", default="openpi", help="what clients speak (default: openpi)"
    )
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine alone)")
    p.add_argument(
        "--port",
        type=value_of(Annotated[int, Range(low=0, high=65_535)]),
        default=8000,
        metavar="N",
        help="port to listen on; 0: any (default: 8000)",
    )
    p.add_argument("--token-file", metavar="FILE", help="clients must show the token in this file")
    p.add_argument(
        "--names",
        nargs="+",
        default=[],
        metavar="KEY=NAME",
        help="the clients' words for image, wrist_image, state, instruction, e.g. image=base_camera",
    )
    p.add_argument("--resize", action="store_true", help="take square images of any size (default: the declared one)")
    p.add_argument("--stochastic", action="store_true", help="sample actions (default: deterministic ones)")
    p.add_argument("--seed", type=seed, default=0, help="seed of sampled actions (default: 0)")
    p.add_argument(
        "--window",
        type=value_of(Annotated[float, Range(low=0, high=1000)]),
        default=4.0,
        metavar="MS",
        help="longest wait of a request for others to share its batch (default: 4)",
    )
    p.add_argument("--max-batch", type=count, default=32, metavar="N", help="requests decided together (default: 32)")
    p.add_argument("--max-clients", type=count, default=256, metavar="N", help="open connections (default: 256)")
    p.add_argument(
        "--idle-timeout",
        type=value_of(Annotated[float, Range(above=0, high=86_400)]),
        default=600.0,
        metavar="S",
        help="close connections that are silent for so long (default: 600)",
    )
    add_device_arguments(p, default="auto")
    add_gym_packages_argument(p)
    return p


def plan_service(args: argparse.Namespace) -> ServicePlan:
    """Resolve the policy and the environment whose conventions hold; raises `BadValue` or `UnknownName`."""
    import_named_packages(args)
    if (args.run is None) == (args.policy is None):
        raise BadValue("give either -i RUN|CHECKPOINT or --policy NAME (a family or a Hub id), not both or none")
    if args.run is None:
        return _plan(args, args.policy, {})
    if not is_remote(args.run) and _is_policy_alone(folder := local_or_shipped(args.run)):
        return _plan(args, str(folder), {})
    run, folder = open_run(args.run)
    config = run.config()
    return _plan(args, str(folder), config.env_options, env=config.env)


def _is_policy_alone(folder: Path) -> bool:
    # It is no run, and lies in none.
    inside = any((parent / CONFIG_FILE).is_file() for parent in (folder, *folder.resolve().parents[:2]))
    return holds_policy(folder) and not inside


def _plan(args: argparse.Namespace, policy: str, trained: Mapping[str, object], env: str | None = None) -> ServicePlan:
    env = args.env or env
    benchmark = None if env is None else find_benchmark(env)
    given = given_settings(args.params)
    if others := [name for name in given if name != "policy_kwargs"]:
        raise BadValue(
            f"-params {others[0]}: a policy that is served takes policy_kwargs only; --env has its conventions"
        )
    kwargs = policy_kwargs_of(args, given)
    by_recipe = policy in FAMILIES

    def start_of(family: str) -> Options:
        return {} if env is None or trained else recipe_to_act(env, family, by_recipe=by_recipe).get("policy", {})

    choice, own = find_policy(policy, kwargs, start_of, benchmark=benchmark, trained=bool(trained), to_act=True)
    check_acting(choice, EvaluationProtocol(sample=args.stochastic), kwargs)
    options: Settings = {}
    if env is not None:
        if not trained:
            values = settings_to_act(env, choice, own, kwargs, by_recipe=by_recipe)
            kwargs, trained = values["policy_kwargs"], env_options(values)
        options = options_to_act({**trained, **policy_env_options(choice)})
        find_benchmark(env, **benchmark_options(options))
    return ServicePlan(
        name=args.run or args.policy,
        policy=choice.read_by(kwargs),
        env=env,
        env_options=options,
        policy_kwargs=kwargs,
    )


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`. Ends with SIGINT or SIGTERM."""
    args = parser().parse(argv)
    plan = plan_service(args)
    require_wire_packages()
    from zoo.serving.server import SESSIONS, PolicyServer

    check_known("protocol", args.protocol, SESSIONS)
    names, settings = wire_names(args.names, SESSIONS[args.protocol].NAMES), server_settings(args)
    with bound_socket(args.host, args.port) as listener:
        import torch

        from zoo.distributed.process_group import use_device
        from zoo.serving.local_policy import open_policy

        if args.num_threads is not None:
            torch.set_num_threads(args.num_threads)
        served = open_policy(
            plan,
            device=use_device(args.device),
            deterministic=not args.stochastic,
            any_image_size=args.resize,
        )
        server = PolicyServer(served.decide, served.declaration, SESSIONS[args.protocol], names, settings)

        async def until_stopped() -> None:
            for number_of_signal in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number_of_signal, server.stop)
            listener.listen()
            host, port = f"[{args.host}]" if ":" in args.host else args.host, listener.getsockname()[1]
            how = served.policy.action_selection_text(deterministic=not args.stochastic)
            print(
                f"serving {served.declaration.policy} ({how}) to {args.protocol} clients on "
                f"ws://{host}:{port}, expecting {served.declaration.text(names)}; "
                f"{policy_line(served.declaration.read_as)}",
                flush=True,
            )
            await server.run(listener)

        asyncio.run(until_stopped())
    return 0


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address, before a policy is loaded; raises `BadValue`."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadValue(
            f"cannot listen on {host}:{port}: {os_reason(error)}; choose another --port or --host"
        ) from error
    return listener


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """Return the settings in the flags, and warn of a server that strangers may reach; raises `BadValue`."""
    token = None if args.token_file is None else read_token(Path(args.token_file))
    if args.host not in ("127.0.0.1", "::1", "localhost"):
        if token is None:
            LOGGER.warning("whoever reaches %s may use this server; --token-file FILE asks for a token", args.host)
        else:
            LOGGER.warning("the token crosses the network unencrypted; put a proxy with TLS in front of this server")
    return ServerSettings(
        token=token,
        window=args.window / 1000.0,
        max_batch=args.max_batch,
        max_clients=args.max_clients,
        idle_seconds=args.idle_timeout,
        seed=args.seed,
    )


def wire_names(pairs: Sequence[str], usual: Mapping[str, str]) -> dict[str, str]:
    """Return the clients' words for our observation keys, `usual` or as --names says; raises `BadValue`."""
    own: dict[str, str] = {}
    for pair in pairs:
        key, _, name = pair.partition("=")
        if not name:
            raise BadValue(f"--names wants KEY=NAME, got '{pair}'. Example: --names image=base_camera")
        own[key] = name
    return renamed(usual, own)


if __name__ == "__main__":
    raise SystemExit(guarded(run))
