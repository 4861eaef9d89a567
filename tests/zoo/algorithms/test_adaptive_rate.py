"""The learning rate follows the KL that its steps bring."""

from __future__ import annotations

import math
from typing import Any

import pytest
from stable_baselines3.common.logger import Logger

from tests.zoo.algorithms.test_ppo import scripted
from tests.zoo.stand_ins import Rows
from tests.zoo.training.test_checkpoint import StopIn, build, learn, same
from zoo.algorithms.adaptive_rate import adapted
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.distributed.learner import Learner
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")


@pytest.mark.parametrize(
    ("factor", "kl", "expected"),
    [
        (1.0, 0.021, 1 / 1.5),
        (1.0, 0.02, 1.0),
        (1.0, 0.005, 1.0),
        (1.0, 0.004, 1.5),
        (0.5, 1e-9, 0.75),
        (0.5, 0.0, 0.5),
        (90.0, 1e-9, 100.0),
        (0.011, 1.0, 0.01),
        (2.0, math.nan, 2.0),
    ],
)
def test_a_factor_by_hand(factor: float, kl: float, expected: float):
    assert adapted(factor, kl, desired_kl=0.01) == pytest.approx(expected)


def rates(model: VLAOnPolicyAlgorithm) -> dict[str, float]:
    return {group["name"]: group["lr"] for group in model.policy.optimizer.param_groups}


def rollouts(model: VLAOnPolicyAlgorithm, count: int) -> None:
    model.set_logger(Logger(None, [Rows()]))
    model.learn(100_000, callback=StopIn(count + 1))


@pytest.mark.parametrize(("desired_kl", "change"), [(1e-12, 1 / 1.5), (100.0, 1.5)])
def test_each_step_but_the_first_of_an_update_changes_the_policys_rate(desired_kl: float, change: float):
    # 20 decisions in three minibatches, two passes: six steps, before five of which there is a KL.
    model = build("ppo", desired_kl=desired_kl)
    rollouts(model, 1)
    expected = min(max(change**5, 0.01), 100)
    assert model._rate_factor == pytest.approx(expected)
    assert rates(model)["backbone"] == pytest.approx(rates(model)["value_head"] * expected)
    row = model.logger.output_formats[0].rows[0]
    assert row["train/actor/lr"] == row["train/learning_rate"] == pytest.approx(rates(model)["backbone"])


def test_steps_that_are_left_out_do_not_raise_the_rate(monkeypatch: pytest.MonkeyPatch):
    model = build("ppo", desired_kl=100.0)
    backward, count = Learner.backward, iter(range(1000))

    def overflow(self: Learner, loss: Any) -> None:
        # The last of six steps alone is taken: an update without any would be refused.
        backward(self, loss * (1.0 if next(count) == 5 else math.inf))

    monkeypatch.setattr(Learner, "backward", overflow)
    rollouts(model, 1)
    assert model.logger.output_formats[0].rows[0]["train/actor/skipped_steps"] == 5
    assert model._rate_factor == 1.0


def test_a_rate_without_a_desired_kl_is_that_of_the_schedule():
    model = build("ppo", target_kl=1e-12)
    rollouts(model, 1)
    assert model._rate_factor == 1.0
    assert rates(model)["backbone"] == rates(model)["value_head"]


def test_the_step_that_ends_an_update_counts():
    model = scripted(learning_rate=5.0, n_epochs=20, target_kl=1e-4, desired_kl=1e-5, batch_size=6)
    model.learn(1)
    passes = model._n_updates
    assert 1 < passes < 20
    # One minibatch a pass; the last was beyond 1.5e-4, and so beyond twice 1e-5.
    assert model._rate_factor < 1.0


def test_passes_of_the_critic_leave_it_alone():
    model = build("ppo", desired_kl=100.0, critic_warmup_updates=1, critic_epochs=2)
    rollouts(model, 1)
    assert model._rate_factor == 1.0


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_a_resumed_run_goes_on_with_the_factor(algo: str, tmp_path: Any):
    total = {"ppo": 300, "grpo": 700}[algo]
    expected = learn(build(algo, desired_kl=1e-4), total)
    stopped = build(algo, desired_kl=1e-4)
    before = learn(stopped, total, StopIn(3))
    assert stopped._rate_factor != 1.0
    folder = save_checkpoint(stopped, tmp_path)
    resumed = build(algo, desired_kl=1e-4)
    load_checkpoint(resumed, folder)
    assert resumed._rate_factor == stopped._rate_factor
    assert same(before + learn(resumed, total, resumed=True), expected)
