"""One robot that a person instructs: an episode played a simulator step at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from vla_gym.observation import check_instruction
from vla_gym.specs import StartState
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_gym.video import Tile, VideoGrid
from zoo.agents.agent import Agent, open_agent


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One call of the policy, and how much of it is executed."""

    action_KA: np.ndarray
    """Action chunk, float32 in [-1, 1]."""
    executed: int = 0
    """Steps of the chunk that the simulator has run."""
    entropy: float | None
    """Mean entropy of the action tokens, nats; None where there are none or a server has them."""
    chain_JKA: np.ndarray | None
    """Chunk after 0 (noise) .. J denoising steps, in the network's units; None where nothing is denoised here."""


@dataclass(frozen=True, kw_only=True)
class PlayState:
    """The episode after a reset or a simulator step, as a person sees it."""

    images: Mapping[str, np.ndarray]
    """Camera -> uint8 `[H, W, 3]`."""
    start: StartState
    seed: int
    """Seed of sampled actions."""
    goal: str
    """The task's own instruction. `success` is that of this task, whatever the policy is told."""
    instruction: str
    """Words that the policy hears at its next decision."""
    horizon: int
    steps: int = 0
    """Simulator steps so far, at most `horizon`."""
    decisions: int = 0
    """Calls of the policy so far."""
    decisions_per_second: float = 0.0
    """Decisions, with their simulator steps and images, per second of computing; 0 before the first."""
    success: bool = False
    """Solved at any step."""
    over: bool = False
    decision: Decision | None = None
    """The present one; None before the first."""

    @property
    def between_decisions(self) -> bool:
        """Whether the next step begins with a decision."""
        return self.decision is None or self.decision.executed == len(self.decision.action_KA)


class PlaySession:
    """A policy in one environment of chunk 1, autoreset DISABLED; a simulator wants to be called from one thread.

    Decisions are those of an evaluation of the same start state and seed, as long as the instruction is the task's own.
    """

    state: PlayState
    """The episode as it is now."""

    def __init__(self, policy: Any, envs: VLAVectorEnv, *, sample: bool = False, seed: int = 0) -> None:
        """`policy` is what `open_agent` returns; `sample` draws actions, by `seed`, instead of deterministic ones."""
        self.tasks, self.control_hz, self.sample = envs.benchmark.tasks, envs.benchmark.control_hz, sample
        self._policy, self._envs = policy, envs
        self.reset(seed=seed)

    @classmethod
    def open(cls, agent: Agent) -> Self:
        """Load the agent and start one simulator of it, with all cameras."""
        policy, envs = open_agent(replace(agent, num_envs=1), every_step=True, every_camera=True)
        return cls(policy, envs, sample=agent.protocol.sample, seed=agent.seed)

    def reset(self, task_id: int = 0, trial_id: int = 0, seed: int = 0) -> PlayState:
        """Begin an episode; the policy is told the task's own instruction, until `instruct`."""
        start, task = StartState(task_id=task_id, trial_id=trial_id), self.tasks[task_id]
        chosen = {name: np.array([number]) for name, number in vars(start).items()}
        self._obs, _ = self._envs.reset(options={"reset_mask": np.array([True]), **chosen})
        self._told, self._seconds, self._video = list[str](), 0.0, VideoGrid()
        self.state = PlayState(
            images=self._images(),
            start=start,
            seed=seed,
            goal=task.instruction,
            instruction=task.instruction,
            horizon=task.horizon,
        )
        self._film()
        return self.state

    def instruct(self, text: str) -> PlayState:
        """Tell the policy `text` from its next decision on; raises `BadValue` for a text that is not allowed."""
        check_instruction(text)
        self.state = replace(self.state, instruction=text)
        return self.state

    def step(self) -> PlayState:
        """Run one simulator step, after a decision where the last chunk is used up; nothing where the episode is
        over."""
        before = self.state
        if before.over:
            return before
        begin = time.perf_counter()
        now = self._decide() if before.between_decisions else before.decision
        assert now is not None
        self._obs, _, terminated_N, truncated_N, infos = self._envs.step(now.action_KA[None, now.executed, None])
        self._seconds += time.perf_counter() - begin
        steps = before.steps + 1
        self.state = replace(
            before,
            images=self._images(),
            steps=steps,
            decisions=before.decisions + (now.executed == 0),
            decisions_per_second=steps / len(now.action_KA) / self._seconds,
            success=before.success or bool(infos["success"][0]),
            over=bool(terminated_N[0] | truncated_N[0]),
            decision=replace(now, executed=now.executed + 1),
        )
        self._film()
        return self.state

    def save_video(self, path: Path) -> Path:
        """Write the episode so far as an mp4, the cameras side by side; raises as `VideoGrid.write`."""
        return self._video.write(path, fps=self.control_hz)

    def close(self) -> None:
        """End the simulator, and the connection with a policy server."""
        self._envs.close()
        if close := getattr(self._policy, "close", None):
            close()

    def _decide(self) -> Decision:
        import torch

        from vla_policies.actions.noise import EpisodeDecision, EpisodeNoise

        now, start = self.state, self.state.start
        if self._told[-1:] != [now.instruction]:
            self._told.append(now.instruction)
        noise = EpisodeNoise(now.seed, [EpisodeDecision(start.task_id, start.trial_id, 0, now.decisions)])
        obs = {**self._obs, "instruction": (now.instruction,)}
        sample = self._policy.act(obs, not self.sample, noise)
        action_KA = sample.action_BKA[0].numpy()
        num, dims = action_KA.shape
        entropy = chain_JKA = None
        if "token" in sample.record:
            with torch.no_grad():
                entropy = float(self._policy.evaluate(obs, sample.record).entropy_BKA.mean())
        elif "chain" in sample.record:
            chain_JKA = sample.record["chain"][0, :, :num, :dims].numpy()
        return Decision(action_KA=action_KA, entropy=entropy, chain_JKA=chain_JKA)

    def _images(self) -> dict[str, np.ndarray]:
        return {camera: self._obs[camera][0] for camera in self._envs.layout.cameras}

    def _film(self) -> None:
        words = " > ".join(self._told) or self.state.instruction
        for number, image in enumerate(self.state.images.values()):
            self._video.tiles.setdefault(number, Tile(words)).instruction = words
            self._video.add(number, image, solved=self.state.success)
