"""The policy that a server serves: loaded without simulators, declared, and deciding for batches of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vla_gym.registry import find_benchmark
from vla_policies.actions.noise import EpisodeDecision, EpisodeNoise, Noise, RowNoise, SlotNoise
from vla_policies.policy import VLAPolicy
from zoo.agents.agent import load_policy
from zoo.config.run_config import benchmark_options, env_conventions
from zoo.runs.evaluations import policy_record, weights_sha256
from zoo.serving.declaration import Declaration, ServicePlan
from zoo.serving.protocols import ActionRequest, NoiseKey


@dataclass(frozen=True)
class LocalPolicy:
    """A loaded policy and its declaration."""

    policy: VLAPolicy
    declaration: Declaration

    def decide(self, requests: Sequence[ActionRequest]) -> list[np.ndarray]:
        """Return each request's actions `[K, A]`; requests that are alike share a batch, and none depends on others.

        That holds for the random numbers always, and for the rest as far as the device computes a row alike in
        batches of every size: see docs/serving.md.
        """
        groups: dict[Any, list[int]] = {}
        for index, request in enumerate(requests):
            shapes = tuple(value.shape for value in request.observation.values() if isinstance(value, np.ndarray))
            groups.setdefault((request.deterministic, shapes), []).append(index)
        decided: dict[int, np.ndarray] = {}
        for alike in groups.values():
            decided |= zip(alike, self._decide_batch([requests[index] for index in alike]), strict=True)
        return [decided[index] for index in range(len(requests))]

    def _decide_batch(self, batch: Sequence[ActionRequest]) -> np.ndarray:
        arrays = [key for key in batch[0].observation if key != "instruction"]
        obs: dict[str, Any] = {key: np.stack([request.observation[key] for request in batch]) for key in arrays}
        obs["instruction"] = tuple(request.observation["instruction"] for request in batch)
        noise = RowNoise([_noise(request.noise) for request in batch])
        action_BKA: np.ndarray = self.policy.act(obs, batch[0].deterministic, noise).action_BKA.float().cpu().numpy()
        return action_BKA


def open_policy(
    plan: ServicePlan,
    *,
    device: torch.device | str,
    deterministic: bool,
    any_image_size: bool,
) -> LocalPolicy:
    """Load the policy, fitted to its environment where one is known, and declare it."""
    options = plan.env_options
    ref = plan.policy.fetched()
    policy = load_policy(ref, plan.policy_kwargs, device, plan.env, options)
    benchmark = None if plan.env is None else find_benchmark(plan.env, **benchmark_options(options))
    conventions, size = policy.conventions, policy.conventions.image_size
    if benchmark is not None:
        size = int(options.get("image_size") or benchmark.default_image_size)
        ref = ref if ref.fresh else ref.fitted(env_conventions(benchmark, options), benchmark.suite)
    declaration = Declaration(
        policy=plan.name,
        family=plan.policy.family,
        env=plan.env,
        env_options=dict(plan.env_options),
        cameras=conventions.cameras,
        image_size=size,
        any_image_size=any_image_size,
        state_dim=conventions.state_dim,
        state="" if benchmark is None else str(benchmark.protocol.get("state", "")),
        chunk=conventions.chunk,
        action_dim=conventions.action_dim,
        action_spec=conventions.action_spec or (None if benchmark is None else benchmark.action_spec),
        control_hz=None if benchmark is None else benchmark.control_hz,
        deterministic=deterministic,
        selection={
            "deterministic": policy.action_selection_text(deterministic=True),
            "sampled": policy.action_selection_text(deterministic=False),
        },
        weights_sha256=None if ref.folder is None else weights_sha256(ref.folder),
        read_as=policy_record(ref, conventions, benchmark),
    )
    return LocalPolicy(policy, declaration)


def _noise(key: NoiseKey) -> Noise:
    seed, *numbers = key
    if len(numbers) == 4:
        return EpisodeNoise(seed, [EpisodeDecision(*numbers)])
    update, decision, slot = numbers
    return SlotNoise(seed, (update, decision), np.array([slot]))
