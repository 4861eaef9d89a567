"""The trained agents that come with the package: `agents/<algo>/<env>/`, each a policy with its run's files.

`-i agents/ppo/MetaWorld-window-close` and `--policy agents/sft/MetaWorld-window-close` work anywhere: a path that
begins with `agents/` and is not here means the package's. `benchmarks/agents.py` trains them all.
"""

from __future__ import annotations

from pathlib import Path

from vla_gym.errors import unknown_name
from zoo.packaged import packaged_folder

PREFIX = "agents"
STAGES = ("grpo", "ppo", "sft")
"""Folders of agents, the further trained first."""


def local_or_shipped(name: str) -> Path:
    """`name` as a path here; where nothing is there and it begins with `agents/`, the package's own.

    Raises `UnknownName` for an agent that the package does not have.
    """
    here = Path(name).expanduser()
    if here.exists() or here.parts[:1] != (PREFIX,):
        return here
    shipped = packaged_folder(PREFIX).joinpath(*here.parts[1:])
    if not shipped.exists():
        raise unknown_name("agent", name, find_agents())
    return shipped


def find_agents(env_folder: str | None = None) -> list[str]:
    """Names of the shipped agents (`agents/<algo>/<env>`), of one environment or of all; the further trained first."""
    root = packaged_folder(PREFIX)
    found = [
        f"{PREFIX}/{stage}/{folder.name}"
        for stage in STAGES
        for folder in sorted((root / stage).glob("*"))
        if (folder / "config.json").is_file()
    ]
    return [one for one in found if env_folder is None or one.rpartition("/")[2] == env_folder]
