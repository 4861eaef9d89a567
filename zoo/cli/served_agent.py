"""`--policy ws://host:port`: a policy server as the agent of the commands that roll a policy out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vla_gym.errors import BadValue
from zoo.cli.arguments import flag_of
from zoo.cli.policy_choice import PolicyChoice
from zoo.evaluation.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from zoo.serving.client import ServerAddress
    from zoo.serving.declaration import Declaration

_SERVER_FLAGS = ("token_file", "server_conf")


@dataclass(frozen=True, kw_only=True)
class Served:
    """A policy server that has been asked what it serves."""

    env: str
    """Environment id."""
    env_options: Mapping[str, Any]
    """Keyword arguments of `make_vec` that give the observations it expects."""
    address: ServerAddress
    declaration: Declaration

    @property
    def is_ours(self) -> bool:
        """Whether the server is `zoo.serve`, which reads how each request's actions are selected."""
        return self.address.conf.policy is None

    def check_acting(self, protocol: EvaluationProtocol) -> None:
        """Raise `BadValue` where the served policy does not act by the protocol."""
        if not self.is_ours and protocol.sample == self.declaration.deterministic:
            kind = "deterministic" if self.declaration.deterministic else "sampled"
            flag = "leave --stochastic out" if protocol.sample else "say --stochastic"
            raise BadValue(f"--server-conf says that {self.address.url} selects {kind} actions; {flag}")
        if protocol.rounds > 1 and not protocol.sample:
            raise BadValue(
                f"--rounds {protocol.rounds} would play every start state {protocol.rounds} times alike; sample with "
                "--stochastic"
            )

    @property
    def choice(self) -> PolicyChoice:
        """The policy as the commands see any other."""
        lengths = {"state_dim": self.declaration.state_dim, "action_dim": self.declaration.action_dim}
        name, family = self.address.url, self.declaration.family
        return PolicyChoice(name=name, family=family, env_options={}, fixed=None, lengths=lengths)


def is_server(name: str | None) -> bool:
    """Whether a policy's name is the address of a policy server."""
    return name is not None and name.startswith(("ws://", "wss://"))


def refuse_server_flags(args: argparse.Namespace) -> None:
    """Raise `BadValue` for flags about a policy server where the policy is none."""
    for name in _SERVER_FLAGS:
        if getattr(args, name) is not None:
            raise BadValue(f"{flag_of(name)} is for a policy server; give --policy ws://HOST:PORT or leave it out")


def find_server(args: argparse.Namespace, policy_kwargs: Mapping[str, Any]) -> Served:
    """Ask the server at `--policy` what it serves.

    Raises `BadValue` for settings of a policy, which are its server's, and `ServerFailed` for a server that does not
    answer.
    """
    from zoo.serving.wire import require_wire_packages

    require_wire_packages()
    from zoo.serving.client import read_declaration, server_address

    if policy_kwargs:
        raise BadValue(
            f"{', '.join(policy_kwargs)}: settings of a policy are its server's, {args.policy}; leave them out"
        )
    address = server_address(args.policy, conf_file=args.server_conf, token_file=args.token_file)
    declaration = read_declaration(address)
    env = args.env or declaration.env
    if env is None:
        raise BadValue("--env is missing: the server does not name one. Say where to act, e.g. --env LIBERO-Spatial")
    return Served(env=env, env_options=declaration.options(), address=address, declaration=declaration)
