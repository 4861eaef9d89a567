"""What the environments of every rank did: in one rollout, and since the last line of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.algorithms.metrics import PhaseClock, episode_metrics
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord


@dataclass(frozen=True)
class Finished:
    """An episode that ended in the last rollout, on whichever rank."""

    num_timesteps: int
    """Simulator steps of the whole run after the decision it ended with."""
    info: dict[str, float]
    """Stable-Baselines3's `r`, `l` and `t`."""
    success: bool | None
    """Its `is_success`, where the environment says it."""
    episode: EpisodeRecord | None
    """What `vla_gym` says of it; None for other environments, and for episodes lost with a worker."""
    task_id: int
    """Index into the benchmark's tasks; -1 where there are none."""


class News:
    """Gathers a rollout decision by decision, then puts the ranks' parts together in one order.

    That order is the one a single process would have seen: by decision, then by slot.
    """

    def __init__(self) -> None:
        self.finished: list[Finished] = []
        """Episodes that ended in the last rollout."""
        self.tasks: set[int] = set()
        """Tasks of which at least one step was trained on."""
        self._episodes: list[EpisodeRecord] = []
        self._decisions = self._sim_steps = self._lost = 0
        self.begin()

    def begin(self) -> None:
        """A rollout begins; what an interrupted one has left is forgotten."""
        self._steps: dict[int, int] = {}
        self._ended: list[dict[str, Any]] = []
        self._own = {"decisions": 0, "lost": 0}
        self._own_tasks: set[int] = set()

    def add(
        self,
        decision: int,
        first_slot: int,
        executed: np.ndarray,
        infos: list[dict[str, Any]],
        dones: np.ndarray,
    ) -> None:
        """Take in decision number `decision` of slots `first_slot`, ...: steps run, infos, and whose episode ended."""
        self._steps[decision] = self._steps.get(decision, 0) + int(executed.sum())
        self._own["decisions"] += int((executed > 0).sum())
        self._own_tasks.update(int(info["task_id"]) for info in infos if info.get("task_id", -1) >= 0)
        for slot, (info, done) in enumerate(zip(infos, dones, strict=True), first_slot):
            lost = bool(done and info.get("lost", False))
            self._own["lost"] += lost
            stats = info.get("episode")
            if stats is not None:
                self._ended.append(
                    {
                        "decision": decision,
                        "slot": slot,
                        "info": {key: float(stats[key]) for key in ("r", "l", "t") if key in stats},
                        "success": bool(info["is_success"]) if done and "is_success" in info else None,
                        "stats": _plain(stats) if done and not lost and "success_once" in stats else None,
                        "task_id": int(info.get("task_id", -1)),
                    }
                )

    def own(self) -> dict[str, Any]:
        """This rank's part of the rollout, JSON values."""
        return {
            "steps": sorted(self._steps.items()),
            "ended": self._ended,
            "tasks": sorted(self._own_tasks),
            **self._own,
        }

    def take(self, part: Mapping[str, Any]) -> None:
        """Take in the `own` of a rank that shares nothing itself."""
        for decision, steps in part["steps"]:
            self._steps[decision] = self._steps.get(decision, 0) + steps
        self._ended += part["ended"]
        self._own_tasks.update(part["tasks"])
        for key in self._own:
            self._own[key] += part[key]

    def share(self, process_group: ProcessGroup, num_timesteps: int) -> int:
        """Put the ranks' rollouts, begun at `num_timesteps`, together; returns the simulator steps done then."""
        parts = process_group.all_gather_object(self.own())
        decisions = sorted({number for part in parts for number, _ in part["steps"]})
        after: dict[int, int] = {}
        for number in decisions:
            num_timesteps += sum(dict(part["steps"]).get(number, 0) for part in parts)
            after[number] = num_timesteps
        ended = sorted(
            (one for part in parts for one in part["ended"]), key=lambda one: (one["decision"], one["slot"])
        )
        self.finished = [
            Finished(
                num_timesteps=after[one["decision"]],
                info=one["info"],
                success=one["success"],
                episode=None
                if one["stats"] is None
                else EpisodeRecord.from_info(one["stats"], task_id=one["task_id"]),
                task_id=one["task_id"],
            )
            for one in ended
        ]
        self._episodes += [one.episode for one in self.finished if one.episode is not None]
        self._decisions += sum(part["decisions"] for part in parts)
        self._lost += sum(part["lost"] for part in parts)
        self._sim_steps += sum(steps for part in parts for _, steps in part["steps"])
        self.tasks.update(task for part in parts for task in part["tasks"])
        return num_timesteps

    def read(self, clock: PhaseClock) -> dict[str, float]:
        """`env/*`, `rollout/success_once` and `time/*` since the last reading; starts anew."""
        values = episode_metrics(self._episodes)
        values["env/episodes_lost"] = float(self._lost)
        values |= clock.read(decisions=self._decisions, sim_steps=self._sim_steps)
        self._episodes = []
        self._decisions = self._sim_steps = self._lost = 0
        return values


def _plain(stats: dict[str, Any]) -> dict[str, float]:
    return {key: float(stats[key]) for key in ("return", "length", "success_once", "success_at_end")}
