"""What `--privileged-coef` asks of datasets and policies, and that the head learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.imitation.test_loss import policy, shown
from tests.zoo.stand_ins import toy_config
from vla_gym import find_benchmark
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from zoo import sft
from zoo.config.run_config import RunConfig
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.demonstrations.recorder import PRIVILEGED, Demonstration
from zoo.imitation.frames import frames_of
from zoo.training.sft import config_with_head, only_places, prepare_head


def seen(length: int, dims: int) -> Demonstration:
    """An episode whose expert saw `dims` numbers."""
    seen_TP = np.arange(length * dims, dtype=np.float32).reshape(length, dims)
    return replace(shown(length), extra={PRIVILEGED: seen_TP})


def config(policy: str) -> RunConfig:
    own = {"backbone_kwargs": {"size": "tiny"}, "temperature": 0.5}
    return toy_config(algo="sft", policy=policy, policy_kwargs=own)


def test_of_what_the_expert_saw_the_places_of_things_are_learned() -> None:
    pick = replace(find_benchmark("Toy-Reach"), privileged_dim=5, places=(1, 3))
    found = only_places({Path("a"): [seen(2, 5)]}, pick)[Path("a")]
    # 0 .. 4 in the first frame, 5 .. 9 in the second.
    assert found[0].extra[PRIVILEGED].tolist() == [[1.0, 3.0], [6.0, 8.0]]
    assert found[0].length == 2
    whole = only_places({Path("a"): [seen(2, 5)]}, replace(pick, places=()))[Path("a")]
    assert whole[0].extra[PRIVILEGED].shape == (2, 5)
    with pytest.raises(BadValue, match="'b': the expert saw 4 numbers, that of Toy-Reach sees 5"):
        only_places({Path("a"): [seen(2, 5)], Path("b"): [seen(2, 4)]}, pick)


def test_a_policy_gets_a_head_of_the_datasets_length() -> None:
    groups = {Path("a"): [seen(3, 4)], Path("b"): [seen(2, 4)]}
    asked = config_with_head(config("nano"), "nano", groups).policy_kwargs
    assert asked == {"backbone_kwargs": {"size": "tiny", "privileged_dim": 4}, "temperature": 0.5}
    with pytest.raises(BadValue, match="--privileged-coef is for family 'nano', got 'openvla'"):
        config_with_head(config("runs/best"), "openvla", groups)


def test_vectors_of_two_lengths_are_refused() -> None:
    with pytest.raises(BadValue, match="vectors of one length; got 'a' 4, 'b' 3"):
        config_with_head(config("nano"), "nano", {Path("a"): [seen(3, 4)], Path("b"): [seen(3, 3)]})


@pytest.mark.parametrize("dims", [0, 5])
def test_a_trained_policy_gets_a_new_head_and_keeps_the_rest(
    dims: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun = policy(privileged_dim=dims)
    begun.save_pretrained(tmp_path / "p")
    opened = VLAPolicy.from_pretrained(tmp_path / "p", device="cpu", backbone_kwargs={"privileged_dim": 2})
    assert "where things are begins anew" in caplog.text
    prepare_head(opened, frames_of([seen(3, 2)], 2))  # 0, 2, 4 and 1, 3, 5
    assert opened.backbone.privileged.mean_P.tolist() == [2.0, 3.0]  # type: ignore[union-attr]
    own = {name: x for name, x in opened.state_dict().items() if "privileged" not in name}
    assert all(x.equal(begun.state_dict()[name]) for name, x in own.items())
    assert len(own) > 20


def test_a_head_that_has_learned_keeps_its_own_scale(tmp_path: Path) -> None:
    begun = policy(privileged_dim=2)
    prepare_head(begun, frames_of([seen(3, 2)], 2))  # 0, 2, 4 and 1, 3, 5
    begun.save_pretrained(tmp_path / "p")
    opened = VLAPolicy.from_pretrained(tmp_path / "p", device="cpu")
    prepare_head(opened, frames_of([seen(30, 2)], 2))
    assert opened.backbone.privileged.mean_P.tolist() == [2.0, 3.0]  # type: ignore[union-attr]


@pytest.mark.processes
def test_a_run_learns_with_it(cwd: Path) -> None:
    rng = np.random.default_rng(0)
    episode = replace(
        seen(8, 3),
        images={"image": rng.integers(0, 255, (8, 32, 32, 3), dtype=np.uint8)},
        state_TS=np.zeros((8, 2), np.float32),
        action_TA=rng.uniform(-1, 1, (8, 2)).astype(np.float32),
    )
    LeRobotWriter(cwd / "d", {}, fps=10).add([episode], tried=1)
    flags = ["--env", "Toy-Reach", "--dataset", "d", "-n", "24", "--batch-size", "8", "--seed", "0", "--device", "cpu"]
    tiny = ["-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
    losses = []
    for coef in ("0", "10"):
        assert sft.run([*flags, "--eval-episodes", "0", "--privileged-coef", coef, *tiny]) == 0
        run = Path(f"logs/sft/Toy-Reach_{len(losses) + 1}")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses.append([row["train/loss"] for row in rows])
    assert losses[1][0] > losses[0][0] + 1.0
    assert losses[1][-1] < losses[0][0] + 1.0
    opened = VLAPolicy.from_pretrained(run / "best", device="cpu")
    assert opened.backbone.privileged is not None
