"""The gradient of a batch of frames, in parts and over ranks, is the gradient of its mean loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.zoo.imitation.test_loss import policy, shown
from vla_policies import VLAPolicy
from vla_policies.actions.noise import Noise
from zoo.demonstrations.recorder import PRIVILEGED
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup
from zoo.imitation.frames import Frames, frames_of
from zoo.imitation.loss import FrameBatch, ImitationScorer, add_gradients, imitation_loss

# Frames 4 and 2 are the last of their episodes: of their two steps one is executed.
INDEX = torch.tensor([4, 1, 7, 2])


def batch() -> FrameBatch:
    return FrameBatch(frames=frames_of([shown(5), shown(3)], 2), index_B=INDEX, seed=3, step=(5, 2))


def gradients(model: VLAPolicy) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def whole() -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients of all frames at once."""
    model, frames = policy(), batch()
    loss = imitation_loss(model, frames.frames.pick(INDEX, torch.device("cpu")))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), gradients(model)


def added(rank: int, size: int, micro_batch_size: int | None, coef: float) -> tuple[float, list[torch.Tensor]]:
    """A rank's share of the loss and its gradients."""
    model = policy()
    learner = Learner(ImitationScorer(model), model.optimizer, 1.0)
    loss = add_gradients(learner, batch(), ProcessGroup(rank, size), micro_batch_size, coef=coef)
    return loss, gradients(model)


@pytest.mark.parametrize("micro_batch_size", [None, 1, 3])
@pytest.mark.parametrize("size", [1, 2])
def test_parts_and_ranks_give_the_mean_over_the_batch(size: int, micro_batch_size: int | None) -> None:
    expected_loss, expected = whole()
    losses, found = zip(*(added(rank, size, micro_batch_size, 0.5) for rank in range(size)), strict=True)
    assert sum(losses) == pytest.approx(expected_loss, rel=1e-5)
    for of_ranks, gradient in zip(zip(*found, strict=True), expected, strict=True):
        # Data parallelism leaves the mean over ranks; half the gradient was asked for.
        torch.testing.assert_close(sum(of_ranks) / size, 0.5 * gradient, rtol=1e-4, atol=1e-7)


def test_parts_add_up_to_what_the_head_learns_too() -> None:
    seen = [replace(shown(n), extra={PRIVILEGED: np.arange(2.0 * n, dtype=np.float32).reshape(n, 2)}) for n in (5, 3)]
    losses = []
    for micro_batch_size in (None, 3):
        model = policy(privileged_dim=2)
        learner = Learner(ImitationScorer(model, 2.0), model.optimizer, 1.0)
        frames = FrameBatch(frames=frames_of([*seen], 2), index_B=INDEX, seed=3, step=(5, 2))
        losses.append(add_gradients(learner, frames, ProcessGroup(0, 1), micro_batch_size))
        head = model.backbone.privileged
        assert head is not None
        assert head.mlp[0].weight.grad is not None
        assert float(head.mlp[0].weight.grad.abs().sum()) > 0.0
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_part_is_changed_by_the_noise_of_its_places() -> None:
    def dimmed(frames: Frames, noise: Noise) -> Frames:
        factor_B1 = noise.uniform(len(frames), 1, device=torch.device("cpu"))
        return replace(frames, obs={"dim": factor_B1})

    changed = replace(batch(), change=dimmed)
    all_B1 = changed.part(torch.arange(4), torch.device("cpu"))[0].obs["dim"]
    last_B1 = changed.part(torch.tensor([2, 3]), torch.device("cpu"))[0].obs["dim"]
    assert torch.equal(all_B1[2:], last_B1)
    assert len(all_B1.unique()) == 4
