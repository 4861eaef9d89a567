"""Groups with signal replace zero-variance groups, within the rounds allowed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zoo.algorithms.test_grpo import standing_still
from tests.zoo.training.test_checkpoint import StopIn, build, learn, same
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")


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
