"""The demonstrations loss: which demonstrations a step takes, what they add to its gradient, and what is refused."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.zoo.imitation.test_loss import shown
from tests.zoo.training.test_checkpoint import StopIn, build, learn, same
from vla_gym.errors import BadValue
from vla_policies.actions.noise import SlotNoise
from zoo import PPO
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup
from zoo.imitation.frames import frames_of
from zoo.imitation.loss import DemonstrationsLoss, imitation_loss
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")


def demonstrations(batch_size: int = 3, seed: int = 0, size: int = 1) -> DemonstrationsLoss:
    return DemonstrationsLoss(
        frames_of([shown(5), shown(2)], 2),
        coef=0.5,
        batch_size=batch_size,
        micro_batch_size=None,
        seed=seed,
        process_group=ProcessGroup(0, size),
    )


def drawn(made: DemonstrationsLoss, epoch: int, count: int = 2) -> list[list[int]]:
    return [batch.index_B.tolist() for batch in islice(made.batches(epoch), count)]


def test_minibatches_follow_from_seed_and_pass() -> None:
    first = drawn(demonstrations(), 4)
    assert first == drawn(demonstrations(), 4)
    assert first != drawn(demonstrations(), 5)
    assert first != drawn(demonstrations(seed=1), 4)
    # Seven frames: none comes twice before all have come once.
    assert len({*first[0], *first[1]}) == 6
    assert [sorted(batch) for batch in drawn(demonstrations(batch_size=7), 0)] == [[*range(7)], [*range(7)]]


def test_no_number_of_a_rollout_is_drawn_again() -> None:
    device, places = torch.device("cpu"), torch.arange(3)
    first, second = islice(demonstrations(seed=6).batches(2), 2)
    drawn = [batch.part(places, device)[1].uniform(3, 4, device=device) for batch in (first, second)]
    rollout = SlotNoise(6, (2, 0), places.numpy()).uniform(3, 4, device=device)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], rollout)


def first_gradient(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[PPO, list[torch.Tensor], dict[str, Any]]:
    """The gradient of a run's first optimiser step and its first update's numbers; the model takes no step."""
    found: list[list[torch.Tensor]] = []

    def apply(self: Learner) -> tuple[torch.Tensor, bool]:
        if not found:
            grads = [parameter.grad for parameter in self.policy.parameters() if parameter.requires_grad]
            found.append([torch.zeros(()) if grad is None else grad.clone() for grad in grads])
        return torch.zeros(()), True

    monkeypatch.setattr(Learner, "apply", apply)
    model = build("ppo", **settings)
    (row,) = learn(model, 1)
    return model, found[0], row  # type: ignore[return-value]


@pytest.mark.parametrize("micro_batch_size", [None, 3])
def test_a_step_has_its_own_gradient_and_bc_coef_times_that_of_imitation(
    demos: Path, monkeypatch: pytest.MonkeyPatch, micro_batch_size: int | None
) -> None:
    _, without, _ = first_gradient(monkeypatch)
    asked = {"bc_coef": 0.5, "bc_dataset": str(demos), "micro_batch_size": micro_batch_size}
    model, found, row = first_gradient(monkeypatch, **asked)
    assert model.demonstrations is not None
    (batch,) = islice(model.demonstrations.batches(0), 1)
    model.policy.optimizer.zero_grad()
    frames, noise = batch.part(torch.arange(model.batch_size), torch.device("cpu"))
    imitation_loss(model.policy, frames, noise).backward()  # type: ignore[no-untyped-call]
    trained = [parameter for parameter in model.policy.parameters() if parameter.requires_grad]
    moved = 0
    for parameter, own, both in zip(trained, without, found, strict=True):
        imitated = torch.zeros(()) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(both, own + 0.5 * imitated, rtol=1e-3, atol=1e-6)
        moved += bool(imitated.abs().max() > 1e-4)
    assert moved > 10
    # Two passes of three minibatches, all of the first weights.
    losses = []
    for batch in (*islice(model.demonstrations.batches(0), 3), *islice(model.demonstrations.batches(1), 3)):
        losses.append(
            imitation_loss(model.policy, *batch.part(torch.arange(model.batch_size), torch.device("cpu"))).item()
        )
    assert row["train/actor/bc_loss"] == pytest.approx(sum(losses) / 6, rel=1e-4)


@pytest.mark.processes
def test_a_run_that_goes_on_imitates_as_the_uninterrupted_one(demos: Path, tmp_path: Path) -> None:
    settings = {"bc_coef": 0.1, "bc_dataset": str(demos)}
    expected = learn(build("ppo", **settings), 200)
    assert all(row["train/actor/bc_loss"] > 0 for row in expected)
    stopped = build("ppo", **settings)
    before = learn(stopped, 200, StopIn(3, 2))
    folder = save_checkpoint(stopped, tmp_path / "checkpoints")
    resumed = build("ppo", **settings)
    load_checkpoint(resumed, folder)
    assert same(before + learn(resumed, 200, resumed=True), expected)
    # Other demonstrations are refused.
    other = tmp_path / "other"
    LeRobotWriter(other, {}, fps=10).add(read_dataset(demos)[1:], tried=2)
    with pytest.raises(BadValue, match=r"does not hold what .* learned from: its images, sentences or actions"):
        load_checkpoint(build("ppo", **{**settings, "bc_dataset": str(other)}), folder)


def test_what_trains_the_critic_alone_imitates_nothing(demos: Path) -> None:
    model = build("ppo", critic_warmup_updates=1, bc_coef=0.1, bc_dataset=str(demos))
    critic = {id(parameter) for parameter in model.policy.backbone.critic_parameters()}
    before = [parameter.detach().clone() for parameter in model.policy.parameters() if id(parameter) not in critic]
    (row,) = learn(model, 1)
    after = [parameter for parameter in model.policy.parameters() if id(parameter) not in critic]
    assert "train/actor/bc_loss" not in row
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"bc_coef": -1.0}, "bc_coef must be at least 0"),
        ({"bc_coef": 0.1}, "bc_dataset"),
        ({"bc_dataset": "demos"}, "bc_coef"),
        ({"bc_coef": 0.1, "bc_dataset": "nowhere"}, "no folder 'nowhere'"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(BadValue, match=match):
        build("ppo", **settings)
