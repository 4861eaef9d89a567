"""Numbers of a rollout: episodes and steps of every rank's environments, and the seconds of each phase."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from vla_gym.vector.sb3 import SB3VecEnv
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.rollout.buffer import Step


class PhaseClock:
    """Seconds spent in named phases since the last `read`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Context manager that counts the time spent inside under `name`."""
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


@dataclass(frozen=True)
class TrainingEpisode:
    """An episode that ended in a rollout, on whichever rank."""

    num_timesteps: int
    """Simulator steps of the whole run after the decision it ended with."""
    record: EpisodeRecord
    """The episode as evaluations record it."""
    clock: float
    """Seconds since its environments were made."""

    @property
    def info(self) -> dict[str, float]:
        """Stable-Baselines3's `r`, `l` and `t`, for `ep_info_buffer`."""
        return {"r": self.record.total_reward, "l": float(self.record.length), "t": self.clock}


@dataclass
class GroupStats:
    """The groups of this rank's rollout, by column of the buffer."""

    lost_N: Tensor
    """Bool: the episode was lost with its simulator."""
    solved_N: Tensor
    """Bool: the episode was solved at any step."""
    num_resampled: int = 0
    """Groups without signal that were replaced."""
    extra_rounds: int = 0
    """Rounds collected to replace them."""


@dataclass(frozen=True, kw_only=True)
class RolloutStats:
    """One rollout of all ranks."""

    num_timesteps: int
    """Simulator steps of the whole run."""
    num_decisions: int
    """Decisions of this rollout."""
    num_sim_steps: int
    """Simulator steps of this rollout."""
    num_lost: int
    """Episodes lost with their simulators."""
    episodes: tuple[TrainingEpisode, ...]
    """Episodes that ended, in the order of a single process: by decision, then by sub-environment."""
    tasks: frozenset[int]
    """Tasks of which at least one step was run."""
    done_N: np.ndarray | None = None
    """Bool: the last decision ended an episode; None where rollouts end with their episodes."""
    last_value_N: Tensor | None = None
    """Values of the observations after the last decision; None where rollouts end with their episodes."""
    groups: GroupStats | None = None
    """Results of the groups, with GRPO."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers for the log."""


class RolloutRecorder:
    """Records a rollout decision by decision, then joins the records of all ranks."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a rollout; the record of an interrupted one is dropped."""
        self._sim_steps: Counter[int] = Counter()
        self._ended: list[dict[str, Any]] = []
        self._counts = Counter(decisions=0, lost=0)
        self._tasks: set[int] = set()

    def add(self, decision: int, first_env: int, step: Step, env: SB3VecEnv) -> None:
        """Record decision number `decision`; `first_env` is this rank's first sub-environment among all ranks'."""
        outcome = step.outcome
        self._sim_steps[decision] += int(outcome.executed_n.sum())
        self._counts["decisions"] += int((outcome.executed_n > 0).sum())
        self._tasks.update(outcome.task_id_n.tolist())
        for row in np.flatnonzero(step.done_n).tolist():
            self._counts["lost"] += bool(outcome.lost_n[row])
            if (stats := outcome.episodes[row]) is not None:
                record = {
                    "task_id": int(outcome.task_id_n[row]),
                    "trial_id": int(outcome.trial_id_n[row]),
                    "success_once": bool(stats.success_once),
                    "success_at_end": bool(stats.success_at_end),
                    "total_reward": float(stats.total_reward),
                    "length": int(stats.length),
                }
                place = {"decision": decision, "env": first_env + int(step.env_n[row]), "clock": env.seconds()}
                self._ended.append({**place, "record": record})

    def own(self) -> dict[str, Any]:
        """This rank's record, JSON values."""
        return {
            "sim_steps": sorted(self._sim_steps.items()),
            "ended": self._ended,
            "tasks": sorted(self._tasks),
            "counts": dict(self._counts),
        }

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the `own` of a rank outside the process group."""
        self._sim_steps.update(dict(other["sim_steps"]))
        self._ended += other["ended"]
        self._tasks.update(other["tasks"])
        self._counts.update(other["counts"])

    def finish(self, process_group: ProcessGroup, num_timesteps: int) -> RolloutStats:
        """Join the records of all ranks; the rollout began at `num_timesteps`. Every rank must call it."""
        total = RolloutRecorder()
        for own in process_group.all_gather_object(self.own()):
            total.merge(own)
        after: dict[int, int] = {}
        for decision, sim_steps in sorted(total._sim_steps.items()):
            after[decision] = num_timesteps = num_timesteps + sim_steps
        ended = sorted(total._ended, key=lambda episode: (episode["decision"], episode["env"]))
        return RolloutStats(
            num_timesteps=num_timesteps,
            num_decisions=total._counts["decisions"],
            num_sim_steps=total._sim_steps.total(),
            num_lost=total._counts["lost"],
            episodes=tuple(
                TrainingEpisode(after[episode["decision"]], EpisodeRecord(**episode["record"]), episode["clock"])
                for episode in ended
            ),
            tasks=frozenset(total._tasks),
        )


def log_metrics(rollouts: Sequence[RolloutStats], clock: PhaseClock) -> dict[str, float]:
    """`env/*`, `rollout/success_once` and `time/*` of `rollouts`; `clock` starts anew."""
    values = episode_metrics([episode.record for stats in rollouts for episode in stats.episodes])
    values["env/episodes_lost"] = float(sum(stats.num_lost for stats in rollouts))
    return values | clock.read(
        decisions=sum(stats.num_decisions for stats in rollouts),
        sim_steps=sum(stats.num_sim_steps for stats in rollouts),
    )


def episode_metrics(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """`env/*` and the headline `rollout/success_once`, over the episodes that ended.

    With automatic resets short (successful) episodes end more often, so during PPO training this is
    optimistic; `eval/*` has each start state once.
    """
    if not episodes:
        return {}
    lengths = np.array([episode.length for episode in episodes], dtype=np.float64)
    returns = np.array([episode.total_reward for episode in episodes], dtype=np.float64)
    success_once = float(np.mean([episode.success_once for episode in episodes]))
    return {
        "rollout/success_once": success_once,
        "env/success_once": success_once,
        "env/success_at_end": float(np.mean([episode.success_at_end for episode in episodes])),
        "env/return": float(returns.mean()),
        "env/return_std": float(returns.std()),
        "env/episode_len": float(lengths.mean()),
        "env/reward": float((returns / np.maximum(lengths, 1)).mean()),
        "env/num_trajectories": float(len(episodes)),
    }
