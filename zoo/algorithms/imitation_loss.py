"""The loss of imitation, for either kind of head: of supervised fine-tuning, and of the anchor beside PPO and GRPO."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vla_policies.actions.flow import matching_times
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import Sampling
from vla_policies.flow_backbone import FlowBackbone
from vla_policies.types import Evaluation
from zoo.algorithms.demonstration_frames import Frames


def imitation_loss(policy: Any, batch: Frames, noise: Noise = TORCH_NOISE, *, privileged_coef: float = 0.0) -> Tensor:
    """Mean over the actions that were executed, and their dims, each times its frame's weight.

    `noise` is what flow matching draws from. `privileged_coef` times the error of the policy's prediction of the
    frames' privileged vectors is added, see `PrivilegedHead.error`.
    """
    backbone = policy.backbone
    inputs = backbone.prepare(batch.obs)
    if isinstance(backbone, FlowBackbone):
        action_BHD = backbone.from_env(batch.action_BKA, inputs)
        noise_BHD = noise.normal(*action_BHD.shape, device=action_BHD.device)
        time_B = matching_times(noise.uniform(len(batch), device=action_BHD.device))
        error_BHD = backbone.matching_loss(inputs, action_BHD, noise_BHD, time_B)
        chunk, dims = batch.action_BKA.shape[1:]
        return _mean(error_BHD[:, :chunk, :dims], batch)
    # Whatever temperature a policy acts with, imitation is of the plain probabilities.
    scored = backbone.evaluate(inputs, backbone.record_of(batch.action_BKA), Sampling())
    loss = _mean(-scored.logprob_BKA, batch)
    if not privileged_coef:
        return loss
    return loss + privileged_coef * _mean(_privileged_error(policy, scored, batch), batch)


def _privileged_error(policy: Any, scored: Evaluation, batch: Frames) -> Tensor:
    """Each frame's error as that of each of its actions, `[B, K, 1]`: then parts of a batch add up to it."""
    error_B: Tensor = policy.backbone.privileged.error(scored.privileged_BP, batch.privileged_BP)
    return error_B[:, None, None].expand(-1, batch.mask_BK.shape[1], 1)


def _mean(value_BKA: Tensor, batch: Frames) -> Tensor:
    mask_BK1 = batch.mask_BK[..., None].to(value_BKA.dtype)
    counted_BKA = value_BKA * mask_BK1
    if batch.weight_B is not None:
        counted_BKA = counted_BKA * batch.weight_B[:, None, None].to(value_BKA.dtype)
    return counted_BKA.sum() / (mask_BK1.sum() * value_BKA.shape[2])
