"""A run, resolved: flags over hyperparameter file over nothing. One frozen record, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vla_gym.errors import BadValue, check_integer, unknown_name
from zoo.config.settings import ALGORITHM_SETTINGS, ENV_SETTINGS, check_algorithm

DEFAULT_EVAL_EPISODES = 20
LARGEST_SEED = 2**32 - 1
"""What `numpy.random.seed` takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides what a run computes (plus where it computes it)."""

    algo: str
    """Key of `zoo.config.settings.ALGORITHMS`."""
    env: str
    """Environment id, e.g. "LIBERO-Spatial/3"."""
    policy: str
    """Family name (fresh weights) or checkpoint folder."""
    n_timesteps: int
    """Simulator steps to train for, all environments together."""
    num_envs: int
    """N, simulators side by side."""
    seed: int
    """Seeds weights, sampling and start states."""
    device: str = "auto"
    """Torch device."""
    num_threads: int | None = None
    """Torch CPU threads; None leaves torch's own choice."""
    eval_freq: int = 0
    """Simulator steps between evaluations; 0 evaluates at the end only."""
    eval_episodes: int = DEFAULT_EVAL_EPISODES
    """Episodes of each evaluation, always on the same start states; 0 evaluates never."""
    save_freq: int = 0
    """Simulator steps between checkpoints; 0 saves at the end only."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `vla_gym.make_vec`."""
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Options of the policy class."""
    algo_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the algorithm; schedules are mappings."""
    entry: str = ""
    """Which hyperparameter entry the numbers started from."""
    pipeline_stages: int | str = 1
    """Parts of a rank's environments, one of which simulates while the policy decides for another; or "auto"."""
    placement: str = "all"
    """Which ranks simulate, decide and learn; see `zoo.distributed.placement`."""
    offload_idle: bool = False
    """Move the optimiser's state to main memory while the policy decides."""
    max_staleness: int = 0
    """Updates that the weights which collect a rollout may be behind; 0 waits for each."""

    @property
    def chunk(self) -> int:
        """K, simulator steps per decision at most."""
        return int(self.env_options.get("chunk", 1))

    @property
    def group_size(self) -> int:
        """G, adjacent environments that share their start states."""
        return int(self.env_options.get("group_size", 1))


def build_config(
    *,
    algo: str,
    env: str,
    policy: str,
    values: Mapping[str, Any],
    seed: int,
    device: str = "auto",
    num_threads: int | None = None,
    entry: str = "",
) -> RunConfig:
    """Sort checked settings (`zoo.config.settings.check_settings`) into a `RunConfig` and cross-check them.

    Raises `BadValue` when a required setting is missing or numbers do not fit each other.
    """
    for name in ("n_timesteps", "num_envs"):
        if name not in values:
            raise BadValue(
                f"setting '{name}' is missing: give it in the hyperparameter entry or on the command line"
            )
    env_options = {name: values[name] for name in ENV_SETTINGS if name in values and name != "env_kwargs"}
    env_options.update(values.get("env_kwargs", {}))
    n_timesteps = values["n_timesteps"]
    config = RunConfig(
        algo=check_algorithm(algo),
        env=env,
        policy=policy,
        n_timesteps=n_timesteps,
        num_envs=values["num_envs"],
        seed=seed,
        device=device,
        num_threads=num_threads,
        eval_freq=values.get("eval_freq", 0),
        eval_episodes=values.get("eval_episodes", DEFAULT_EVAL_EPISODES),
        save_freq=values.get("save_freq", max(1, n_timesteps // 4)),
        env_options=env_options,
        policy_kwargs=values.get("policy_kwargs", {}),
        algo_kwargs={name: values[name] for name in ALGORITHM_SETTINGS[algo] if name in values},
        entry=entry,
    )
    check_arithmetic(config)
    return config


def check_arithmetic(config: RunConfig) -> None:
    """Raise `BadValue` for counts that are too small or do not divide, naming the nearest that does."""
    for name in ("n_timesteps", "num_envs"):
        if getattr(config, name) < 1:
            raise BadValue(f"{name} must be at least 1, got {getattr(config, name)}")
    for name in ("eval_freq", "eval_episodes", "save_freq"):
        if getattr(config, name) < 0:
            raise BadValue(f"{name} must be 0 or more, got {getattr(config, name)}")
    check_integer("seed", config.seed, 0, LARGEST_SEED)
    _check_normalisation(config)
    group = config.group_size
    if group >= 1 and config.num_envs % group:
        near = max(group, round(config.num_envs / group) * group)
        raise BadValue(
            f"num_envs={config.num_envs} is not a multiple of group_size={group}: every group needs all its "
            f"environments. Nearest allowed: --num-envs {near}"
        )


def _check_normalisation(config: RunConfig) -> None:
    """PPO normalises advantages over a rollout, which takes two decisions."""
    if config.algo != "ppo" or not config.algo_kwargs.get("normalize_advantage", True):
        return
    for name, count in (
        ("batch_size", config.algo_kwargs.get("batch_size")),
        ("n_steps x num_envs", config.num_envs * config.algo_kwargs.get("n_steps", 2)),
    ):
        if count is not None and count < 2:
            raise BadValue(f"{name} must be at least 2 to normalise advantages, got {count}")


def family_options(config: RunConfig) -> dict[str, Any]:
    """The part of `env_options` that `vla_gym.find_benchmark` takes: `split` and the family's own options."""
    own = {name: value for name, value in config.env_options.items() if name not in ENV_SETTINGS}
    return own | {name: value for name, value in config.env_options.items() if name == "split"}


def to_plain(config: RunConfig) -> dict[str, Any]:
    """As a dict of plain values, for `config.yml`."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_plain(values: Mapping[str, Any], where: str) -> RunConfig:
    """Inverse of `to_plain`; raises `UnknownName` or `BadValue` for anything that is no such record."""
    fields = {f.name: f for f in dataclasses.fields(RunConfig)}
    for name in values:
        if name not in fields:
            raise unknown_name(f"setting in {where}", str(name), fields, show=20)
    required = (f.name for f in fields.values() if f.default is f.default_factory is dataclasses.MISSING)
    if lacking := [name for name in required if name not in values]:
        raise BadValue(f"{where} lacks {', '.join(lacking)}")
    config = RunConfig(**values)
    check_arithmetic(config)
    return config


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
