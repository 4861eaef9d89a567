"""Tuned numbers: `hyperparams/<algo>.yml`, keyed `<env>/<policy>` with a fallback to the env's family.

An entry is a flat mapping of the settings in `zoo.config.run_config.known_settings`, plus `source`: the origin of its
numbers. Values are data; schedules are mappings. Nothing is ever evaluated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vla_gym.errors import BadValue, unknown_name
from zoo.config.algorithm_configs import ALGORITHMS, OffPolicyConfig
from zoo.config.run_config import check_settings, known_settings
from zoo.config.settings import Options, Settings, annotations_of
from zoo.files import packaged_folder
from zoo.yaml_text import read_yaml_mapping


@dataclass(frozen=True, kw_only=True)
class Hyperparams:
    """One entry, checked."""

    entry: str
    """Its key, e.g. "LIBERO/nano"."""
    source: str
    """Origin of the numbers."""
    values: Options
    """Setting -> value."""


def load_hyperparams(algo: str, env_id: str, policy: str, conf_file: Path | None = None) -> Hyperparams:
    """Return the first entry that fits: `<env>`, its suite, its family, then `default`, each `/<policy>`; of
    a family of the user's, which has none, nano's. Algorithms that learn from a replay take what their entry does not
    say of the environment, the policy and the run from PPO's.

    `conf_file` replaces the packaged file. Raises `BadValue` when the file cannot be read, is no
    mapping or has no fitting entry, and `UnknownName` for a setting that does not exist.
    """
    where = str(conf_file) if conf_file else f"hyperparams/{algo}.yml"
    entries = read_entries(conf_file, where) if conf_file else _packaged(algo)
    own_family = [] if conf_file else candidate_keys(env_id, "nano")
    wanted = list(dict.fromkeys([*candidate_keys(env_id, policy), *own_family]))
    for key in wanted:
        if key in entries:
            found = _entry(algo, key, entries[key], where)
            return replace(found, values=deep_merge(_of_ppo(algo, env_id, policy), found.values))
    raise unknown_name(
        f"entry for {env_id} with {policy} in {where}, tried {', '.join(wanted)}; entry", wanted[0], entries
    )


def _of_ppo(algo: str, env_id: str, policy: str) -> Options:
    if not issubclass(ALGORITHMS[algo], OffPolicyConfig):
        return {}
    shared = known_settings(algo).keys() - annotations_of(ALGORITHMS[algo]).keys()
    return {name: value for name, value in load_hyperparams("ppo", env_id, policy).values.items() if name in shared}


def acting_recipe(env_id: str, policy: str) -> Options:
    """Return the settings of a policy that only acts: PPO's, or GRPO's where only they name weights."""
    own = load_hyperparams("ppo", env_id, policy).values
    others = (packaged_entry("grpo", key) for key in candidate_keys(env_id, policy))
    named = (other.values for other in others if other is not None and other.values.get("policy"))
    return own if own.get("policy") else next(named, own)


def packaged_entry(algo: str, key: str) -> Hyperparams | None:
    """Return the packaged entry of exactly that key; None when there is none (any more)."""
    where = f"hyperparams/{algo}.yml"
    entries = _packaged(algo)
    return _entry(algo, key, entries[key], where) if key in entries else None


def candidate_keys(env_id: str, policy: str) -> list[str]:
    """Return the keys, most exact first: "LIBERO-Spatial/3/nano", "LIBERO-Spatial/nano", "LIBERO/nano", ..."""
    words = env_id.split("/", 1)[0].split("-")
    suites = ("-".join(words[:count]) for count in range(len(words), 0, -1))
    names = dict.fromkeys((env_id, *suites, "default"))
    return [f"{name}/{policy}" for name in names]


def read_entries(file: Path, where: str) -> Settings:
    """Return the file's entries, unchecked; raises `BadValue` when it is missing or no mapping."""
    return read_yaml_mapping(file, "entries such as 'LIBERO/nano' to settings", where)


def deep_merge(below: Mapping[str, object], above: Mapping[str, object]) -> Settings:
    """Return `below` with the keys of `above` over it, at any depth of mappings."""
    merged = dict(below)
    for name, value in above.items():
        former = merged.get(name)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            value = deep_merge(former, value)
        merged[name] = value
    return merged


def _entry(algo: str, key: str, entry: object, where: str) -> Hyperparams:
    if not isinstance(entry, dict) or not isinstance(entry.get("source", ""), str):
        raise BadValue(f"entry '{key}' of {where} must be a mapping; its 'source', if any, says where it comes from")
    values = {name: value for name, value in entry.items() if name != "source"}
    return Hyperparams(
        entry=key,
        source=" ".join(entry.get("source", "").split()),
        values=check_settings(algo, values, f"{where}, entry {key}"),
    )


@functools.cache
def _packaged(algo: str) -> Options:
    return read_entries(packaged_folder("hyperparams") / f"{algo}.yml", f"hyperparams/{algo}.yml")
