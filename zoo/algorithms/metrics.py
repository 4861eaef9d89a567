"""Names and definitions of what is logged (contract, section 6); the update's own are in `update_metrics`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord


class PhaseClock:
    """Seconds spent in named phases since the last reading."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time spent inside under `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def read(self, *, decisions: int, sim_steps: int) -> dict[str, float]:
        """`time/<phase>_seconds` and `_fraction` since the last reading, and speeds; starts anew."""
        now = time.perf_counter()
        total = max(now - self._began, 1e-9)
        values: dict[str, float] = {"time/iteration_seconds": total}
        for name, seconds in self._seconds.items():
            values[f"time/{name}_seconds"] = seconds
            values[f"time/{name}_fraction"] = seconds / total
        values["time/decisions_per_second"] = decisions / total
        values["time/sim_steps_per_second"] = sim_steps / total
        self._seconds = {}
        self._began = now
        return values


def episode_metrics(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """`env/*` and the headline `rollout/success_once`, over the episodes that ended in this rollout.

    With automatic resets short (successful) episodes end more often, so during PPO training this is
    optimistic; `eval/*` has each start state once.
    """
    if not episodes:
        return {}
    lengths = np.array([one.length for one in episodes], dtype=np.float64)
    returns = np.array([one.total_reward for one in episodes], dtype=np.float64)
    success_once = float(np.mean([one.success_once for one in episodes]))
    return {
        "rollout/success_once": success_once,
        "env/success_once": success_once,
        "env/success_at_end": float(np.mean([one.success_at_end for one in episodes])),
        "env/return": float(returns.mean()),
        "env/episode_len": float(lengths.mean()),
        "env/reward": float((returns / np.maximum(lengths, 1)).mean()),
        "env/num_trajectories": float(len(episodes)),
    }


def rank_means(values: Mapping[str, Tensor], process_group: ProcessGroup) -> dict[str, float]:
    """Mean of each tensor's entries over all ranks; what has none is left out."""
    sums = process_group.all_reduce_sum(
        torch.tensor([[float(one.double().sum()), float(one.numel())] for one in values.values()]).double()
    )
    return {name: float(total / count) for name, (total, count) in zip(values, sums, strict=True) if count}


def advantage_range(advantage: Tensor, process_group: ProcessGroup) -> dict[str, float]:
    """`rollout/advantages_max` and `_min` over all ranks; empty where none has an entry."""
    own = torch.full((2,), -math.inf)
    if advantage.numel():
        own = torch.stack([advantage.max(), -advantage.min()])
    highest, lowest = process_group.all_reduce_max(own).tolist()
    return (
        {} if highest == -math.inf else {"rollout/advantages_max": highest, "rollout/advantages_min": -lowest}
    )


def learning_rates(optimizer: torch.optim.Optimizer) -> Mapping[str, float]:
    """`train/actor/lr` and, where the value head has a group of its own, `train/critic/lr`."""
    rates = {
        str(group.get("name", index)): float(group["lr"]) * float(group.get("lr_scale", 1.0))
        for index, group in enumerate(optimizer.param_groups)
    }
    actor = rates.get("backbone", next(iter(rates.values())))
    return {"train/actor/lr": actor, "train/critic/lr": rates.get("value_head", actor)}
