"""The two losses of supervised fine-tuning, and their gradient in parts and over ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vla_gym.specs import StartState
from vla_policies import VLAPolicy
from vla_policies.actions.flow import matching_times
from vla_policies.actions.noise import Noise, SlotNoise
from zoo.demonstrations.recorder import PRIVILEGED, Demonstration
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup
from zoo.imitation.frames import Frames, frames_of
from zoo.imitation.loss import FrameBatch, ImitationScorer, add_gradients, imitation_loss

TINY = {"size": "tiny", "width": 32, "heads": 2, "points": 4, "bin_features": 8}


def shown(length: int = 5, instruction: str = "reach") -> Demonstration:
    rng = np.random.default_rng(0)
    return Demonstration(
        task="t",
        instruction=instruction,
        start=StartState(task_id=0, trial_id=0),
        start_state="ff",
        success=True,
        images={"image": rng.integers(0, 255, (length, 16, 16, 3), dtype=np.uint8)},
        state_TS=rng.standard_normal((length, 2)).astype(np.float32),
        action_TA=rng.uniform(-1, 1, (length, 3)).astype(np.float32),
    )


def policy(family: str = "nano", chunk: int = 2, **options: Any) -> VLAPolicy:
    from vla_policies.conventions import Conventions

    own = Conventions(cameras=("image",), image_size=16, state_dim=2, chunk=chunk, action_dim=3)
    torch.manual_seed(0)
    size = TINY if family.startswith("nano") else {"size": "tiny"}
    return VLAPolicy(
        own.observation_space(),
        own.action_space(),
        lambda _: 3e-3,
        backbone=family,
        backbone_kwargs={**size, **options},
    )


def test_a_flow_policy_learns_all_actions_that_it_predicts_at_once() -> None:
    """Of pi0's tiny horizon of 10 two are played; the episode's 12 actions leave frame 5 seven of its ten."""
    learner = policy("pi0", chunk=2)
    backbone: Any = learner.backbone
    frames = frames_of([shown(12)], backbone.imitated_steps)
    assert frames.action_BKA.shape == (12, 10, 3)
    assert frames.mask_BK[5].tolist() == [True] * 7 + [False] * 3
    noise, again = (SlotNoise(0, (0, 0), np.arange(12)) for _ in range(2))
    inputs = backbone.prepare(frames.obs)
    action_BHD = backbone.from_env(frames.action_BKA, inputs)
    assert torch.equal(action_BHD[:, :, :3], frames.action_BKA)
    noise_BHD = noise.normal(*action_BHD.shape, device=action_BHD.device)
    error_BHD = backbone.matching_loss(
        inputs, action_BHD, noise_BHD, matching_times(noise.uniform(12, device=action_BHD.device))
    )
    wanted = error_BHD[:, :, :3][frames.mask_BK].mean()
    torch.testing.assert_close(imitation_loss(learner, frames, again), wanted)


def test_the_token_loss_is_the_mean_cross_entropy_of_what_was_executed() -> None:
    frames, learner = frames_of([shown(2)], 2), policy()
    backbone = learner.backbone
    log_probs = backbone(backbone.prepare(frames.obs)).logits_BKAV.log_softmax(-1).detach()  # type: ignore[operator]
    total = 0.0
    # Frame 0 has two steps to learn, frame 1, the last, has one.
    for frame, step in ((0, 0), (0, 1), (1, 0)):
        for dim in range(3):
            action = float(frames.action_BKA[frame, step, dim])
            token = min(255, math.floor((action + 1) * 128))
            total -= float(log_probs[frame, step, dim, token])
    assert imitation_loss(learner, frames).item() == pytest.approx(total / 9, rel=1e-5)


def test_a_policys_temperature_is_not_imitated() -> None:
    frames, learner = frames_of([shown(2)], 2), policy()
    before = imitation_loss(learner, frames).item()
    from vla_policies.actions.sampling import Sampling

    learner.sampling = Sampling(temperature=2.0, top_k=3)
    assert imitation_loss(learner, frames).item() == before


def test_the_flow_loss_is_the_velocitys_error_where_something_was_executed() -> None:
    frames, learner = frames_of([shown(2)], 2), policy("nano-flow")
    torch.manual_seed(5)
    loss = imitation_loss(learner, frames).item()
    torch.manual_seed(5)
    noise_BHD = torch.randn(2, 2, 3)
    time_B = matching_times(torch.rand(2, dtype=torch.float64))
    backbone: Any = learner.backbone
    inputs = backbone.prepare(frames.obs)
    error_BHD = backbone.matching_loss(inputs, frames.action_BKA, noise_BHD, time_B).detach()
    # Frame 1, the last, has nothing to learn in its second step.
    assert loss == pytest.approx((error_BHD[0].sum() + error_BHD[1, 0].sum()).item() / 9, rel=1e-5)


@pytest.mark.parametrize("family", ["nano", "nano-flow"])
def test_a_frames_loss_counts_as_often_as_it_weighs(family: str) -> None:
    learner = policy(family)
    frames = replace(frames_of([shown(2)], 2), weight_B=torch.tensor([3.0, 0.5]))

    def loss(*index: int, weighted: bool) -> float:
        picked = frames.pick(torch.tensor(index), torch.device("cpu"))
        picked = picked if weighted else replace(picked, weight_B=None)
        return imitation_loss(learner, picked, SlotNoise(3, (7, 0), np.array(index))).item()

    # Frame 0 has two steps to learn, frame 1, the last, has one.
    expected = (3.0 * 2 * loss(0, weighted=False) + 0.5 * loss(1, weighted=False)) / 3
    assert loss(0, 1, weighted=True) == pytest.approx(expected, rel=1e-5)
    assert loss(1, 0, weighted=True) == pytest.approx(expected, rel=1e-5)


def test_what_an_expert_saw_is_learned_in_standard_deviations() -> None:
    # Three numbers: 0 and 2 (deviations -1 and 1 of the mean 1), always 5, and 0 and 20 (-1 and 1 of 10).
    seen_TP = np.array([[0.0, 5.0, 0.0], [2.0, 5.0, 20.0]], dtype=np.float32)
    frames = frames_of([replace(shown(2), extra={PRIVILEGED: seen_TP})], 2)
    assert frames.privileged_BP is not None
    learner = policy(privileged_dim=3)
    head: Any = learner.backbone.privileged
    head.fit(frames.privileged_BP)
    head.mlp[-1].weight.data.zero_()
    head.mlp[-1].bias.data.copy_(torch.tensor([0.5, 9.0, 2.0]))
    # Huber's error of 0.5 against -1 and 2 against -1 in frame 0; of 0.5 and 2 against 1 in frame 1.
    errors = [(1.0 + 2.5) / 2, (0.125 + 0.5) / 2]
    # Frame 0 has two steps to learn, frame 1, the last, has one; every frame counts like its actions.
    expected = (2 * errors[0] + errors[1]) / 3
    alone = imitation_loss(learner, frames).item()
    assert imitation_loss(learner, frames, privileged_coef=0.5).item() == pytest.approx(alone + 0.5 * expected)


def test_what_a_frame_draws_does_not_depend_on_its_company() -> None:
    frames, learner = frames_of([shown(4)], 1), policy("nano-flow", 1)
    # With chunks of one action every frame counts alike.
    whole = imitation_loss(learner, frames, SlotNoise(3, (7, 0), np.arange(4))).item()
    each = [
        imitation_loss(
            learner, frames.pick(torch.tensor([k]), torch.device("cpu")), SlotNoise(3, (7, 0), np.array([k]))
        ).item()
        for k in range(4)
    ]
    assert whole == pytest.approx(sum(each) / 4, rel=1e-5)
    assert len(set(each)) == 4


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
