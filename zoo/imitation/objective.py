"""Supervised fine-tuning: frames with the expert's next K actions, and a loss for either kind of head."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.observation import encode_instruction
from vla_policies.actions.flow import matching_times
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import Sampling
from vla_policies.flow_backbone import FlowBackbone
from zoo.algorithms.learner import Scorer
from zoo.demonstrations.recorder import Demonstration


@dataclass(frozen=True)
class Frames:
    """B frames of demonstrations, or all of them."""

    obs: dict[str, Tensor]
    """`image` uint8 `[B, H, W, 3]`, perhaps `wrist_image`, `state` float32 `[B, S]`; `instruction` uint8 `[B, 160]`."""
    action_BKA: Tensor
    """What the expert did in the next K steps, float32; zero after the episode's end."""
    mask_BK: Tensor
    """True where the episode still ran."""

    def __len__(self) -> int:
        return len(self.action_BKA)

    def digest(self) -> str:
        """Tells one set of demonstrations from another: SHA-256 of their actions, in hexadecimal."""
        return hashlib.sha256(self.action_BKA.contiguous().numpy().data).hexdigest()

    def pick(self, index_B: Tensor, device: torch.device) -> Frames:
        """The frames of `index_B`, on `device`."""
        obs = {key: value[index_B].to(device) for key, value in self.obs.items()}
        return Frames(obs, self.action_BKA[index_B].to(device), self.mask_BK[index_B].to(device))


def frames_of(demonstrations: Sequence[Demonstration], chunk: int) -> Frames:
    """Every frame of every demonstration with its chunk of K actions."""
    if not demonstrations:
        raise BadValue("no demonstrations to learn from")
    obs: dict[str, list[np.ndarray]] = {}
    actions, masks = [], []
    for one in demonstrations:
        parts = {**one.images, "instruction": np.tile(encode_instruction(one.instruction), (one.length, 1))}
        if one.state_TS.shape[1]:
            parts["state"] = one.state_TS
        for key, value in parts.items():
            obs.setdefault(key, []).append(value)
        action_TKA, mask_TK = chunk_targets(one.action_TA, chunk)
        actions.append(action_TKA)
        masks.append(mask_TK)
    return Frames(
        {key: torch.from_numpy(np.concatenate(values)) for key, values in obs.items()},
        torch.from_numpy(np.concatenate(actions)),
        torch.from_numpy(np.concatenate(masks)),
    )


def chunk_targets(action_TA: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Actions of the next K steps from each step, `[T, K, A]`, and where there are any, bool `[T, K]`."""
    length = len(action_TA)
    at_TK = np.arange(length)[:, None] + np.arange(chunk)
    mask_TK = at_TK < length
    action_TKA = np.where(mask_TK[..., None], action_TA[np.minimum(at_TK, length - 1)], 0.0)
    return action_TKA.astype(np.float32), mask_TK


def batches(num_frames: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Indices of batches, without end: every frame once, in random order, then once more."""
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < batch_size:
            left = torch.cat([left, torch.randperm(num_frames, generator=generator)])
        yield left[:batch_size]
        left = left[batch_size:]


class ImitationScorer(Scorer):
    """Loss of a batch of `Frames`, what a `Learner` differentiates."""

    def forward(self, batch: Any, noise: Noise) -> Any:
        """Cross-entropy of the expert's tokens, or flow matching's squared error: a scalar."""
        return imitation_loss(self.policy, batch, noise)


def imitation_loss(policy: Any, batch: Frames, noise: Noise = TORCH_NOISE) -> Tensor:
    """Mean over the actions that were executed, and their dims; `noise` is what flow matching draws from."""
    backbone = policy.backbone
    if isinstance(backbone, FlowBackbone):
        inputs = backbone.prepare(batch.obs)
        action_BHD = backbone.from_env(batch.action_BKA, inputs)
        noise_BHD = noise.normal(*action_BHD.shape, device=action_BHD.device)
        time_B = matching_times(noise.uniform(len(batch), device=action_BHD.device))
        error_BHD = backbone.matching_loss(inputs, action_BHD, noise_BHD, time_B)
        chunk, dims = batch.action_BKA.shape[1:]
        return _mean(error_BHD[:, :chunk, :dims], batch.mask_BK)
    inputs = backbone.prepare(batch.obs)
    # Whatever temperature a policy acts with, imitation is of the plain probabilities.
    scored = backbone.evaluate(inputs, backbone.record_of(batch.action_BKA), Sampling())
    return _mean(-scored.logprob_BKA, batch.mask_BK)


def _mean(value_BKA: Tensor, mask_BK: Tensor) -> Tensor:
    weight_BK1 = mask_BK[..., None].to(value_BKA.dtype)
    return (value_BKA * weight_BK1).sum() / (weight_BK1.sum() * value_BKA.shape[2])
