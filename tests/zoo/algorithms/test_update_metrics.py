"""An update's numbers by hand, on two minibatches of which one has a masked element; and faults that are warned of."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import pytest
import torch
from gymnasium import spaces

from zoo.algorithms.losses import PPOLoss, Scores
from zoo.algorithms.update_metrics import (
    TrainingWarning,
    UpdateMetrics,
    behaviour_gap,
    explained_variance,
    faults,
    in_half_precision,
    learning_rates,
    rank_means,
    value_range,
    warn_of_faults,
)
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer, Minibatch
from zoo.rollout.minibatches import MicroBatch

LOSS = PPOLoss(clip_low=0.2, clip_high=0.4, vf_coef=1.0, clip_vf=0.5)


def metrics(loss: PPOLoss = LOSS) -> UpdateMetrics:
    """Ratios 1, 2 (advantage 1), then 4 and a masked one (advantage -1)."""
    result = UpdateMetrics(loss)
    parts = (
        ([[1.0, 2.0]], [1.0], [[True, True]], [1.0], [0.0], [1.0]),
        ([[4.0, 99.0]], [-1.0], [[True, False]], [0.1], [0.0], [0.0]),
    )
    for ratio, advantage, mask, value, old_value, target in parts:
        mask_BL = torch.tensor(mask)
        batch = Minibatch(
            obs="not kept",
            choice="not kept",
            executed_B=None,
            old_logprob_BL=torch.zeros(1, 2),
            advantage_BL=torch.tensor(advantage)[:, None],
            return_BU=torch.tensor(target)[:, None],
            old_value_BU=torch.tensor(old_value)[:, None],
            mask_BL=mask_BL,
            weight_BL=mask_BL / mask_BL.sum(),
        )
        scores = Scores(torch.tensor(ratio).log(), torch.tensor([[1.0, 3.0]]), torch.tensor(value)[:, None])
        result.begin_epoch()
        result.begin_minibatch()
        result.add(loss(scores, batch), scores, MicroBatch(batch, weight=1.0, last=True))
        result.add_step(torch.tensor(2.0), stepped=True)
    return result


def test_actor_numbers_are_means_over_executed_elements():
    numbers = metrics().actor()
    assert numbers["train/actor/ratio"] == pytest.approx(7 / 3)
    assert numbers["train/actor/ratio_abs"] == pytest.approx(4 / 3)
    # Clipped to 1.4 above.
    assert numbers["train/actor/clipped_ratio"] == pytest.approx((1 + 1.4 + 1.4) / 3)
    # Only ratio 2 with advantage 1 is held back.
    assert numbers["train/actor/clip_fraction"] == pytest.approx(1 / 3)
    assert numbers["train/actor/approx_kl"] == pytest.approx(-(math.log(2) + math.log(4)) / 3)
    assert numbers["train/actor/approx_kl_k3"] == pytest.approx((4 - math.log(8)) / 3)
    assert numbers["train/actor/entropy"] == pytest.approx((1 + 3 + 1) / 3)
    # Losses: mean of -1 and -1.4; and 4.
    assert numbers["train/actor/policy_loss"] == pytest.approx((-1.2 + 4) / 2)
    assert numbers["train/actor/ratio_first"] == pytest.approx(1.5)
    assert numbers["train/actor/ratio_first_gap"] == pytest.approx(1.0)
    assert numbers["train/actor/grad_norm"] == 2.0


def test_the_value_clip_ratio_counts_moves_before_clamping():
    numbers = metrics().critic()
    assert numbers["train/critic/value_clip_ratio"] == 0.5
    # Replaced by 0.5: error 0.25; 0.1 stays: error 0.01.
    assert numbers["train/critic/value_loss"] == pytest.approx(0.13)
    # Errors 0 and -0.1, targets 1 and 0: 1 - 0.0025 / 0.25.
    assert numbers["train/critic/explained_variance"] == pytest.approx(0.99)


def test_stable_baselines3s_kl_is_of_the_last_epoch():
    assert metrics().as_sb3()["train/approx_kl"] == pytest.approx(3 - math.log(4))


def test_a_step_that_was_skipped_is_counted_apart():
    result = metrics()
    result.add_step(torch.tensor(math.nan), stepped=False)
    numbers = result.actor()
    assert numbers["train/actor/skipped_steps"] == 1
    assert numbers["train/actor/grad_norm"] == 2.0


def test_the_kl_of_the_latest_minibatch():
    assert metrics().latest_kl() == pytest.approx(3 - math.log(4))


def one_decision(mask_BL: torch.Tensor) -> tuple[Minibatch, Scores]:
    """Of two elements, everything about it 1."""
    ones = torch.ones(1, 2)
    batch = Minibatch(
        obs="not kept",
        choice="not kept",
        executed_B=None,
        old_logprob_BL=ones,
        advantage_BL=ones[:, :1],
        return_BU=ones[:, :1],
        old_value_BU=ones[:, :1],
        mask_BL=mask_BL,
        weight_BL=mask_BL.float(),
    )
    return batch, Scores(ones, ones, ones[:, :1])


def test_a_stand_in_counts_for_nothing():
    result, before = metrics(), metrics().actor()
    batch, scores = one_decision(torch.ones(1, 2, dtype=torch.bool))
    result.add(LOSS(scores, batch), scores, MicroBatch(batch, weight=0.0, last=True))
    assert result.actor() == before


def test_explained_variance_by_hand_and_without_any():
    # Targets 0 and 2 have variance 1 (biased), errors -1 and 0 have 1/4.
    value, target = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0])
    assert explained_variance(value, target, ProcessGroup()) == pytest.approx(0.75)
    assert math.isnan(explained_variance(value, torch.ones(2), ProcessGroup()))


def test_learning_rates_of_named_groups():
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    groups = [{"params": [a], "name": "backbone"}, {"params": [b], "name": "value_head", "lr_scale": 10.0}]
    assert learning_rates(torch.optim.SGD(groups, lr=0.1)) == {"train/actor/lr": 0.1, "train/critic/lr": 1.0}
    assert learning_rates(torch.optim.SGD([a], lr=0.1)) == {"train/actor/lr": 0.1, "train/critic/lr": 0.1}


def test_means_and_ranges_leave_out_what_has_no_entry():
    values = {"some": torch.tensor([[1.0, 2.0], [3.0, 6.0]]), "none": torch.zeros(0)}
    assert rank_means(values, ProcessGroup()) == {"some": 3.0}
    assert value_range("x", torch.tensor([-1.0, 3.0]), ProcessGroup()) == {"x_max": 3.0, "x_min": -1.0}
    assert value_range("x", torch.zeros(0), ProcessGroup()) == {}


def test_the_gap_to_the_weights_that_decided():
    buffer = ChunkRolloutBuffer(1, spaces.Dict(), spaces.Box(-1, 1, (2, 1)), n_envs=2)
    buffer.executed_TN[:] = torch.tensor([[2, 1]])
    # Weights exp(0.1), exp(1) > 2, exp(-0.4); the last step of the second decision was not run.
    buffer.logprob_TNKA = torch.tensor([[[[-0.9], [-1.0]], [[-1.4], [5.0]]]])
    assert behaviour_gap(buffer, "token", ProcessGroup()) == {}
    buffer.behaviour_logprob_TNKA = torch.tensor([[[[-1.0], [-2.0]], [[-1.0], [0.0]]]])
    gap = behaviour_gap(buffer, "token", ProcessGroup())
    assert gap["train/actor/behav_approx_kl"] == pytest.approx((-0.1 - 1.0 + 0.4) / 3)
    assert gap["train/actor/behav_clip_fraction"] == pytest.approx(1 / 3)


def test_a_minibatch_of_masked_places_says_nothing_of_the_ratio():
    result, before = metrics(), metrics().as_sb3()
    batch, scores = one_decision(torch.zeros(1, 2, dtype=torch.bool))
    result.begin_minibatch()
    result.add(LOSS(scores, batch), scores, MicroBatch(batch, weight=1.0, last=True))
    assert math.isnan(result.latest_kl())
    after = result.as_sb3()
    for name in ("train/approx_kl", "train/clip_fraction"):
        assert after[name] == before[name]


HEALTHY = {
    "groups": 8,
    "groups_with_signal": 5,
    "groups_left_out": 0,
    "groups_solved": 0,
    "advantage_spread": 2.0,
    "train/actor/clip_fraction": 0.1,
    "train/actor/approx_kl_k3": 0.01,
    "train/actor/entropy": 3.0,
    "value_gap": 0.2,
    "train/actor/ratio_first_gap": 1e-6,
}


def test_a_healthy_update_is_not_complained_about():
    assert faults(HEALTHY) == {}


def test_groups_that_are_all_solved_are_no_fault():
    assert faults({"groups": 8, "groups_with_signal": 0, "groups_solved": 8}) == {}
    assert "AllGroupsDead" in faults({"groups": 8, "groups_with_signal": 0, "groups_solved": 7})
    left_out = faults({"groups": 8, "groups_with_signal": 0, "groups_left_out": 3})["AllGroupsDead"]
    assert left_out.startswith("of 8 groups 3 have both better and worse members, and score_bounds or a lost episode")


@pytest.mark.parametrize(
    ("change", "name", "knob"),
    [
        ({"groups_with_signal": 0}, "AllGroupsDead", "temperature"),
        ({"advantage_spread": 0.0}, "ZeroAdvantage", "rewards"),
        ({"train/actor/clip_fraction": 0.6}, "ClipFractionHigh", "learning_rate"),
        ({"train/actor/approx_kl_k3": 0.4}, "KLHigh", "target_kl"),
        ({"train/actor/entropy": 1e-4}, "EntropyCollapse", "ent_coef"),
        ({"value_gap": 3.0}, "ValueDivergence", "clip_range_vf"),
        ({"train/actor/skipped_steps": 1}, "GradientNotFinite", "float32"),
        ({"train/actor/ratio_first_gap": 0.1}, "RatioNotOne", "recompute_logprobs"),
        ({"no_signal_updates": 5}, "NoSuccessAtAll", "task_reward"),
        ({"no_success_episodes": 64}, "NoSuccessAtAll", "vla-zoo sft"),
    ],
)
def test_each_fault_has_a_name_and_a_knob(change: dict[str, float], name: str, knob: str):
    found = faults({**HEALTHY, **change})
    assert list(found) == [name]
    assert knob in found[name]


@pytest.mark.parametrize(
    ("steps", "half_precision", "warned"),
    [(0.5, False, True), (0.5, True, False), (2.0, True, False), (2.5, True, True)],
)
def test_half_precision_may_round_a_logit_to_its_neighbour(steps: float, half_precision: bool, warned: bool):
    # bfloat16 has 8 significant bits: 16 and 16.125 are neighbours. One log-probability moves by `steps` such gaps:
    # e^0.0625 - 1 = 0.064 is above 0.05; e^0.25 - 1 = 0.284 is the limit itself; e^0.3125 - 1 = 0.367 is above.
    assert torch.tensor([16.06, 16.07]).bfloat16().tolist() == [16.0, 16.125]
    gap = math.expm1(steps * 0.125)
    found = faults({**HEALTHY, "train/actor/ratio_first_gap": gap, "half_precision": half_precision})
    assert ("RatioNotOne" in found) == warned
    assert all("recompute_logprobs" in text for text in found.values())


@pytest.mark.parametrize(
    ("dtype", "trained", "half"),
    [
        (torch.float32, True, False),
        (torch.bfloat16, False, True),
        (torch.float16, True, True),
        (torch.int8, False, False),
    ],
)
def test_frozen_weights_in_half_precision_count(dtype: torch.dtype, trained: bool, half: bool):
    policy = torch.nn.Linear(2, 2)
    policy.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=dtype), requires_grad=trained)
    assert in_half_precision(policy) == half


def test_a_repeated_fault_is_told_at_its_1st_2nd_4th_and_8th_time():
    counts, sick = Counter(), {"train/actor/approx_kl_k3": 1.0}
    warned = []
    for occurrence in range(1, 11):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert warn_of_faults(sick, counts) == ["KLHigh"]
        if caught:
            assert issubclass(caught[0].category, TrainingWarning)
            warned.append(occurrence)
    assert warned == [1, 2, 4, 8]
