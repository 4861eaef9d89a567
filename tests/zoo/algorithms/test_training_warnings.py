"""Each fault is named, says which knob to turn, and does not flood a long run."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from zoo.algorithms.training_warnings import (
    TrainingWarning,
    TrainingWarnings,
    UpdateHealth,
    faults,
    in_half_precision,
)

HEALTHY = {
    "groups": 8,
    "groups_with_signal": 5,
    "advantage_spread": 2.0,
    "clip_fraction": 0.1,
    "kl": 0.01,
    "entropy": 3.0,
    "value_gap": 0.2,
    "ratio_gap": 1e-6,
}


def test_a_healthy_update_is_not_complained_about():
    assert faults(UpdateHealth(**HEALTHY)) == {}


def test_groups_that_are_all_solved_are_no_fault():
    assert faults(UpdateHealth(groups=8, groups_with_signal=0, groups_solved=8)) == {}
    assert "AllGroupsDead" in faults(UpdateHealth(groups=8, groups_with_signal=0, groups_solved=7))
    left_out = faults(UpdateHealth(groups=8, groups_with_signal=0, groups_left_out=3))["AllGroupsDead"]
    assert left_out.startswith("of 8 groups 3 have both better and worse members, and score_bounds or a lost episode")


@pytest.mark.parametrize(
    ("change", "name", "knob"),
    [
        ({"groups_with_signal": 0}, "AllGroupsDead", "temperature"),
        ({"advantage_spread": 0.0}, "ZeroAdvantage", "rewards"),
        ({"clip_fraction": 0.6}, "ClipFractionHigh", "learning_rate"),
        ({"kl": 0.4}, "KLHigh", "target_kl"),
        ({"entropy": 1e-4}, "EntropyCollapse", "ent_coef"),
        ({"value_gap": 3.0}, "ValueDivergence", "clip_range_vf"),
        ({"skipped_steps": 1}, "GradientNotFinite", "float32"),
        ({"ratio_gap": 0.1}, "RatioNotOne", "recompute_logprobs"),
        ({"no_signal_updates": 5}, "NoSuccessAtAll", "task_reward"),
        ({"no_success_episodes": 64}, "NoSuccessAtAll", "zoo.sft"),
    ],
)
def test_each_fault_has_a_name_and_a_knob(change: dict[str, float], name: str, knob: str):
    found = faults(UpdateHealth(**{**HEALTHY, **change}))
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
    found = faults(UpdateHealth(**{**HEALTHY, "ratio_gap": gap}, half_precision=half_precision))
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
    alarms, sick = TrainingWarnings(), UpdateHealth(kl=1.0)
    warned = []
    for occurrence in range(1, 11):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert alarms.check(sick) == ["KLHigh"]
        if caught:
            assert issubclass(caught[0].category, TrainingWarning)
            warned.append(occurrence)
    assert warned == [1, 2, 4, 8]


def test_grpo_from_no_success_at_all_gets_advice_after_five_updates():
    no_signal = {**HEALTHY, "groups_with_signal": 0}
    assert list(faults(UpdateHealth(**no_signal, no_signal_updates=4))) == ["AllGroupsDead"]
    found = faults(UpdateHealth(**no_signal, no_signal_updates=5))
    assert "demonstrations" in found["NoSuccessAtAll"]
