"""Every entry of `hyperparams/` becomes a checked run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vla_gym.benchmarks import list_envs
from zoo.hyperparams import candidate_keys
from zoo.resolve import resolve_new_run
from zoo.train import parser

FOLDER = Path(__file__).parents[2] / "hyperparams"
ENTRIES = [(file, key) for file in sorted(FOLDER.glob("*.yml")) for key in yaml.safe_load(file.read_text())]


@pytest.mark.parametrize(("file", "key"), ENTRIES, ids=lambda value: getattr(value, "stem", value))
def test_every_entry_builds_a_run(file: Path, key: str, tmp_path: Path) -> None:
    name, _, policy = key.rpartition("/")
    users = [env for env in list_envs() if key in candidate_keys(env, policy)]
    assert users, f"no environment can ever use {name}"
    alone = tmp_path / "alone.yml"
    alone.write_text(yaml.safe_dump({key: yaml.safe_load(file.read_text())[key]}))
    flags = ["--algo", file.stem, "--env", users[0], "--policy", policy, "-conf", str(alone)]
    config = resolve_new_run(parser().parse(flags))
    assert config.entry == key
    assert config.num_envs % int(config.env_options.get("group_size", 1)) == 0


def test_both_algorithms_are_tuned_for_meta_world() -> None:
    for algo in ("ppo", "grpo"):
        for env in ("MetaWorld-MT50", "MetaWorld/reach"):
            config = resolve_new_run(parser().parse(["--algo", algo, "--env", env]))
            assert config.entry == "MetaWorld/nano"
            assert config.env_options["render_quality"] == "fast"
