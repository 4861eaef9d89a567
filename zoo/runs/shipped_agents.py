"""The trained agents: `agents/<algo>/<env>/`, each a policy with its run's files.

They are a distribution of their own, `vla-zoo-agents` (the extra `agents`), and in a checkout its folder `agents/`.
`-i agents/ppo/MetaWorld-window-close` and `--policy agents/sft/MetaWorld-window-close` work anywhere: a path that
begins with `agents/` and is not here means theirs. `benchmarks/agents.py` trains them all.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from vla_gym.errors import MissingDependency, unknown_name
from vla_gym.reading import user_path
from vla_gym.registry import find_benchmark
from vla_gym.system.extras import install_command
from zoo.runs.folder import CONFIG_FILE, POLICY_CONFIG_FILE
from zoo.yaml_text import read_yaml

PREFIX = "agents"
STAGES = ("grpo", "ppo", "sft")
"""Folders of agents, the further trained first."""


_DISTRIBUTION = "vla_zoo_agents"
_CHECKOUT = Path(__file__).parents[2] / PREFIX


def agents_folder() -> Path | None:
    """Return the folder of the agents: of this checkout, else of the installed distribution; None without either."""
    # Another project's package may be called `agents`, too.
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT
    found = find_spec(_DISTRIBUTION)
    return None if found is None or found.origin is None else Path(found.origin).parent


def local_or_shipped(name: str) -> Path:
    """`name` as a path here; where nothing is there and it begins with `agents/`, that of a trained agent.

    Raises `UnknownName` for an agent that does not exist and `MissingDependency` where none are installed.
    """
    here = user_path(name)
    if here.exists() or here.parts[:1] != (PREFIX,):
        return here
    root = agents_folder()
    if root is None:
        raise MissingDependency(
            f"no folder '{name}' here, and the trained agents are not installed. Install them with: "
            f"{install_command('agents')}"
        )
    shipped = root.joinpath(*here.parts[1:])
    if not shipped.exists():
        raise unknown_name("agent", name, find_agents())
    return shipped


def is_shipped(path: Path) -> bool:
    """Whether the path lies among the trained agents, in a checkout too; nothing is written there."""
    root = agents_folder()
    return root is not None and root.resolve() in path.expanduser().resolve().parents


def find_agents() -> list[str]:
    """Names of the trained agents (`agents/<algo>/<env>`), the further trained first; none where none are installed."""
    root = agents_folder()
    if root is None:
        return []
    return [
        f"{PREFIX}/{stage}/{folder.name}"
        for stage in STAGES
        for folder in sorted((root / stage).glob("*"))
        if (folder / POLICY_CONFIG_FILE).is_file()
    ]


def agents_for(env_id: str) -> list[str]:
    """Shipped agents that were trained on every task of `env_id`.

    Those of that very environment come first, then those of a suite it is a part of (`MetaWorld/reach` is a task
    of `MetaWorld-MT10`); among either the further trained. Agents of benchmarks that are not installed are left out.
    """
    wanted, trained_on = _tasks(env_id), {}
    for agent in find_agents():
        with suppress(MissingDependency):
            trained_on[agent] = _tasks(str(read_yaml(local_or_shipped(agent) / CONFIG_FILE)["env"]))
    able = [agent for agent, tasks in trained_on.items() if wanted <= tasks]
    return sorted(able, key=lambda agent: len(trained_on[agent]))


def _tasks(env_id: str) -> frozenset[tuple[str, str]]:
    return frozenset((task.suite, task.name) for task in find_benchmark(env_id).tasks)
