"""`hyperparams/rl_zoo3.yml` as rl_zoo3 takes it from a package: `python -m rl_zoo3.train -conf zoo.config.rl_zoo3`."""

from __future__ import annotations

from zoo.config.hyperparams import read_entries
from zoo.config.settings import Settings
from zoo.files import packaged_folder

hyperparams: Settings = read_entries(packaged_folder("hyperparams") / "rl_zoo3.yml", "hyperparams/rl_zoo3.yml")
"""Gymnasium's id of an environment, or "default" -> rl_zoo3's settings."""
