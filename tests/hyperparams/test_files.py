"""Every entry of `hyperparams/` becomes a checked run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from stable_baselines3.common.utils import FloatSchedule

from vla_gym import make_vec
from vla_gym.adapters.libero.plus_tasks import OF_ARCHIVE
from vla_gym.errors import UnknownName
from vla_gym.registry import find_benchmark, list_envs
from vla_policies.registry import FAMILIES
from vla_policies.resolver import resolve_policy
from zoo.cli.run_flags import resolve_new_run
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.hyperparams import candidate_keys, load_hyperparams
from zoo.config.run_config import RunConfig, benchmark_options
from zoo.distributed.process_group import ProcessGroup
from zoo.train import parser
from zoo.training.run_plan import RunPlan, TrainJob, dry_run_text
from zoo.training.setup import make_model

FOLDER = Path(__file__).parents[2] / "hyperparams"
FILES = [FOLDER / f"{algo}.yml" for algo in ALGORITHMS]
ENTRIES = [(file, key) for file in FILES for key in yaml.safe_load(file.read_text())]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_family_has_settings_for_any_environment(algo: str, family: str) -> None:
    own = family if algo in ("ppo", "grpo") else "nano"
    assert load_hyperparams(algo, "Their-Own", family).entry == f"default/{own}"


EVERY_ENTRY = pytest.mark.parametrize(("file", "key"), ENTRIES, ids=lambda value: getattr(value, "stem", value))


def run_of(file: Path, key: str, folder: Path, entry: dict[str, Any] | None = None, *more: str) -> RunConfig:
    """The run that an entry gives in the first environment that uses it; `more` are further flags."""
    name, _, policy = key.rpartition("/")
    here = (env for env in list_envs() if env.rpartition("-")[2] not in OF_ARCHIVE)
    users = [env for env in here if key in candidate_keys(env, policy)]
    assert users, f"no environment can ever use {name}"
    alone = folder / "alone.yml"
    alone.write_text(yaml.safe_dump({key: entry or yaml.safe_load(file.read_text())[key]}))
    flags = ["--algo", file.stem, "--env", users[0], "--policy", policy, "-conf", str(alone)]
    return resolve_new_run(parser().parse([*flags, *more]))


@EVERY_ENTRY
def test_every_entry_builds_a_run(file: Path, key: str, tmp_path: Path) -> None:
    config = run_of(file, key, tmp_path)
    assert config.entry == key
    assert yaml.safe_load(file.read_text())[key]["source"]
    assert config.num_envs % int(config.env_options.get("group_size", 1)) == 0
    plan = RunPlan.resolve(config)
    if key.startswith("default/"):  # counting a policy takes long
        assert "nothing was started or written" in dry_run_text(plan, None)


@pytest.mark.parametrize(("file", "key"), [(file, "default/nano") for file in FILES])
def test_a_setting_that_the_algorithm_does_not_have_is_refused(file: Path, key: str, tmp_path: Path) -> None:
    entry = yaml.safe_load(file.read_text())[key]
    with pytest.raises(UnknownName, match="learning_rat"):
        run_of(file, key, tmp_path, {**entry, "learning_rat": 1.0e-3})
    other = {"ppo": ("rollouts_per_update", 2), "grpo": ("gae_lambda", 0.9)}.get(file.stem, ("n_epochs", 2))
    with pytest.raises(UnknownName, match=other[0]):
        run_of(file, key, tmp_path, {**entry, other[0]: other[1]})


@pytest.mark.parametrize(
    ("file", "key"),
    [
        pytest.param(file, key, marks=[] if key.startswith("default/") else pytest.mark.thorough)
        for file, key in ENTRIES
        if file.stem != "dsrl"  # of flow policies; its own tests make it
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_every_entry_makes_its_algorithm(file: Path, key: str, tmp_path: Path) -> None:
    """With a small random network of the family, on an environment without a simulator."""
    tiny = "policy_kwargs:{backbone_kwargs: {size: tiny}}"
    config = run_of(file, key, tmp_path, None, "-params", tiny)
    assert config.policy == key.rpartition("/")[2]
    group = config.group_size
    envs = make_vec("Toy-Reach", num_envs=max(2, group), chunk=config.chunk, group_size=group, seed=0)
    policy = resolve_policy(config.policy, config.policy_kwargs)
    job = TrainJob(config=config, policy=policy, log_folder=tmp_path, command=(), args={})
    model = make_model(job, envs, torch.device("cpu"), ProcessGroup())
    for name, value in config.algo_kwargs.items():
        if not isinstance(value, dict):
            assert _plain(getattr(model.config, name)) == pytest.approx(_plain(value)), name
    envs.close()


def _plain(value: Any) -> Any:
    if isinstance(value, FloatSchedule):
        value = value(1.0)
    return list(value) if isinstance(value, tuple) else value


# Decisions an update and optimiser steps an update, as published ("N -> U").
@pytest.mark.parametrize(
    ("algo", "env", "policy", "decisions", "steps"),
    [
        ("ppo", "ManiSkill-Plate25", "openvla", 20480, 32),
        ("ppo", "ManiSkill-Plate25", "openvla-oft", 2560, 4),
        ("ppo", "ManiSkill-Plate25", "pi0", 5120, 4),
        ("ppo", "LIBERO-Long", "openvla-oft", 32768, 32),
        ("ppo", "MetaWorld-MT50", "pi0", 10240, 20),
        ("ppo", "MetaWorld-ML45", "pi0", 10240, 20),
        ("grpo", "ManiSkill-Plate25", "openvla", 20480, 32),
        ("grpo", "ManiSkill-Plate25", "openvla-oft", 2560, 4),
        ("grpo", "LIBERO-Spatial", "openvla-oft", 65536, 4),
        ("grpo", "LIBERO-130", "openvla-oft", 262144, 16),
        ("grpo", "MetaWorld-MT50", "openvla-oft", 102400, 8),
    ],
)
def test_published_sizes(algo: str, env: str, policy: str, decisions: int, steps: int) -> None:
    config = resolve_new_run(parser().parse(["--algo", algo, "--env", env, "--policy", policy]))
    kwargs = config.algo_kwargs
    assert config.entry == f"{env}/{policy}"
    rounds = kwargs.get("rollouts_per_update") or kwargs.get("rounds_per_update")
    if rounds is None:
        per_env = kwargs["n_steps"]
    else:
        horizon = max(task.horizon for task in find_benchmark(env, **benchmark_options(config.env_options)).tasks)
        per_env = -(-horizon // config.chunk) * rounds
    assert config.num_envs * per_env == decisions
    assert kwargs["n_epochs"] * -(-decisions // kwargs["batch_size"]) == steps
