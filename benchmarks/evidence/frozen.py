"""Recipes that are frozen: written down with their hash before the seeds are run that they are reported on.

A recipe that is changed after it was tried on a seed has seen that seed. So a trial runs only with the recipe in
`frozen.json`, which is committed before, and its record bears the hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.agents import ALGORITHMS, AgentRecipe
from zoo.config.hyperparams import load_hyperparams

FROZEN = Path(__file__).with_name("frozen.json")


def settings_of(algo: str, recipe: AgentRecipe) -> dict[str, Any]:
    """Return the settings of a training: its recipe's, but GRPO has as many simulator steps as PPO."""
    values = dict(load_hyperparams(algo, recipe.env, "nano").values)
    if algo in ALGORITHMS:
        usual = load_hyperparams("ppo", recipe.env, "nano").values["n_timesteps"]
        values["n_timesteps"] = recipe.n_timesteps or usual
    return values


def resolved(recipe: AgentRecipe) -> dict[str, Any]:
    """Return all that decides a trial's trainings but the seed, as JSON values."""
    own = {
        name: value
        for name, value in asdict(recipe).items()
        if name not in ("seed", "splits", "episodes", "validation")
    }
    settings = {algo: settings_of(algo, recipe) for algo in recipe.algorithms}
    return dict(json.loads(json.dumps({**own, "algorithms": settings})))


def hash_of(record: Mapping[str, Any]) -> str:
    """Return the hash of a recipe as of `resolved`, 16 hex digits."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def freeze(recipe: AgentRecipe, file: Path = FROZEN) -> str:
    """Write the recipe down, in place of what was frozen for its environment; return its hash."""
    record = resolved(recipe)
    kept = {**_read(file), recipe.env: {"hash": hash_of(record), "recipe": record}}
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return hash_of(record)


def frozen_hash(recipe: AgentRecipe, file: Path = FROZEN) -> str:
    """Return the hash of a recipe that is frozen; raises `SystemExit` for one that is not."""
    frozen = _read(file).get(recipe.env, {"hash": "none", "recipe": {}})
    # A field that recipes did not have yet is no change where it stands at its default.
    new = {one.name: one.default for one in fields(recipe) if one.name not in frozen["recipe"]}
    record = resolved(recipe).items()
    now = hash_of({name: value for name, value in record if name not in new or value != new[name]})
    if now != frozen["hash"]:
        raise SystemExit(
            f"the recipe of {recipe.env} is {now}, frozen is {frozen['hash']}: write it down with --freeze and commit "
            f"{file.name}, then run seeds that it was not chosen on"
        )
    return now


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
