"""Groups with signal replace zero-variance groups, within the rounds allowed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.zoo.algorithms.test_grpo import standing_still, toy
from tests.zoo.training.test_checkpoint import StopIn, build, learn, same
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")


def test_groups_with_signal_of_a_further_round_replace_those_without():
    model = toy(resample_dead_groups=3)
    # Group 1 lacks signal; of the further round group 0 has it and moves to columns 4 .. 7; then all have it.
    answers = iter([[True, False], [True, False], [True, True], [True, True]])
    seen = []

    def has_signal(buffer: Any, lost_N: Any) -> torch.Tensor:
        outcomes = model.collector()._groups.outcomes
        seen.append(([group.start_state for group in outcomes], buffer.obs["image"].clone()))
        return torch.tensor(next(answers))

    model.has_signal = has_signal
    model.learn(1)
    (first, before), (_, spare), (after, now), _ = seen
    assert torch.equal(now[0, :4], before[0, :4])
    assert torch.equal(now[0, 4:], spare[0, :4])
    assert not torch.equal(before[0, 4:], spare[0, :4])
    assert after[0] == first[0]
    assert after[1] != first[1]
    logged = model.logger.output_formats[0].rows[-1]
    assert logged["rollout/groups_resampled"] == 1
    assert logged["rollout/resample_rounds"] == 1
    assert logged["rollout/groups"] == 2
    # Both rounds were run and are counted.
    assert len(model.ep_info_buffer) == 16


def test_it_ends_when_the_rounds_are_used_up():
    model = standing_still(resample_dead_groups=2)
    model.learn(1)
    logged = model.logger.output_formats[0].rows[-1]
    assert logged["rollout/resample_rounds"] == 2
    assert logged["rollout/groups_resampled"] == 0
    assert logged["rollout/groups_kept"] == 0.0
    assert len(model.ep_info_buffer) == 3 * 8


@pytest.mark.processes
def test_a_resumed_run_repeats_the_uninterrupted_one(tmp_path: Any):
    settings = {"resample_dead_groups": 1}
    whole = learn(build("grpo", **settings), 1500)
    stopped = build("grpo", **settings)
    before = learn(stopped, 1500, StopIn(2, 3))
    folder = save_checkpoint(stopped, tmp_path)
    resumed = build("grpo", **settings)
    load_checkpoint(resumed, folder)
    assert len(before) == 1
    assert any(row["rollout/resample_rounds"] for row in whole)
    assert same(before + learn(resumed, 1500, resumed=True), whole)
