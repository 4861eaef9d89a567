"""Reinforcement learning for vision-language-action policies: algorithms, runs, evaluation, command line."""

from importlib import import_module
from typing import TYPE_CHECKING

from vla_gym import __version__
from vla_gym.system.limits import let_waiting_threads_sleep

if TYPE_CHECKING:
    from zoo.algorithms.grpo import GRPO
    from zoo.algorithms.ppo import PPO

__all__ = ["GRPO", "PPO", "__version__"]


# Loaded on first use: `python -m zoo.train --help` must answer without waiting for torch.
def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'zoo' has no attribute '{name}'")
    let_waiting_threads_sleep()
    return getattr(import_module(f"zoo.algorithms.{name.lower()}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
