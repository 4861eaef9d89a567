"""Reinforcement learning for vision-language-action policies: algorithms, runs, evaluation, command line."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.algorithms.grpo import GRPO
    from zoo.algorithms.ppo import PPO

__all__ = ["GRPO", "PPO"]


# Loaded on first use: `python -m zoo.train --help` must answer without waiting for torch.
def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'zoo' has no attribute '{name}'")
    return getattr(import_module(f"zoo.algorithms.{name.lower()}"), name)
