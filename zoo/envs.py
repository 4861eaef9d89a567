"""`vla-zoo envs LIBERO`: the environment ids that a pattern fits, with their tasks and trained agents."""

from __future__ import annotations

from collections.abc import Sequence

from vla_gym.errors import unknown_name
from vla_gym.registry import list_envs, num_tasks
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.cli.shared_flags import add_gym_packages_argument
from zoo.config.gym_packages import import_gym_packages
from zoo.runs.folder import folder_name
from zoo.runs.lookup import find_agents


def parser() -> OneLineParser:
    """The flags of `vla-zoo envs`."""
    p = OneLineParser("vla-zoo envs", "Environment ids. Where an id has several tasks, ID/0, ID/1, ... are one each.")
    p.add_argument("pattern", nargs="?", metavar="PATTERN", help="a part of their names, in any case (default: all)")
    add_gym_packages_argument(p)
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_gym_packages(args.gym_packages)
    envs, agents = list_envs(), find_agents()
    fitting = [env for env in envs if (args.pattern or "").casefold() in env.casefold()]
    if not fitting:
        raise unknown_name("environment", args.pattern, envs)
    for env in fitting:
        own = [agent for agent in agents if agent.split("/")[2] == folder_name(env)]
        print(f"{env:<32}{num_tasks(env):>4} task{' ' if num_tasks(env) == 1 else 's'}  {' '.join(own)}".rstrip())
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
