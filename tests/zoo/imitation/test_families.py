"""`zoo.sft` from a checkpoint of every family of ours, on a dataset that `zoo.collect` made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vla_policies import VLAPolicy
from zoo import collect, sft
from zoo.cli.main import guarded
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.imitation.frames import frames_of
from zoo.imitation.loss import imitation_loss

pytestmark = pytest.mark.processes

pytest.importorskip("pyarrow")
LORA = {"lora": {"rank": 4}}
TINY = ["-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
FAMILIES = [
    pytest.param("openvla", LORA, id="openvla", marks=pytest.mark.thorough),
    pytest.param("openvla-oft", LORA, id="openvla-oft"),
    pytest.param("pi0", {}, id="pi0"),
    pytest.param("pi05", {"train_expert_only": False}, id="pi05", marks=pytest.mark.thorough),
]


def collect_demos(folder: Path) -> Path:
    """Three episodes of a policy that knows nothing."""
    flags = ["--env", "Toy-Reach", "--policy", "nano", "--stochastic", "--device", "cpu", "--keep-failures"]
    assert collect.run([*flags, "-n", "3", "--num-envs", "1", "-o", str(folder)]) == 0
    return folder


def base(family: str, folder: Path) -> Path:
    """A small checkpoint of a family for Toy-Reach, as somebody may have published it."""
    import vla_gym

    torch.manual_seed(0)
    envs = vla_gym.make_vec("Toy-Reach", num_envs=1, chunk=1 if family == "openvla" else 4).as_sb3()
    policy = VLAPolicy(
        envs.observation_space,
        envs.action_space,
        lambda _: 1e-3,
        backbone=family,
        backbone_kwargs={"size": "tiny"},
    )
    envs.close()
    policy.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_a_checkpoint_learns_and_what_it_learned_opens_again(
    family: str, options: dict[str, Any], demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chunk = 1 if family == "openvla" else 4
    settings = [f"chunk:{chunk}", "policy_kwargs:" + json.dumps({"backbone_kwargs": options})]
    flags = ["--env", "Toy-Reach", "--dataset", str(demos), "--policy", str(base(family, tmp_path / "base"))]
    size = ["-n", "15", "--batch-size", "16", "--micro-batch-size", "8", "--learning-rate", "1e-2"]
    shared = ["--eval-episodes", "0", "--seed", "0", "--device", "cpu", "-params", *settings]
    assert sft.run([*flags, *size, *shared]) == 0
    run = Path("logs/sft/Toy-Reach_1")
    assert (run / "best" / "adapter_model.safetensors").is_file() == bool(options.get("lora"))
    frames, found = frames_of(read_dataset(demos), chunk), []
    for folder in (tmp_path / "base", run / "best"):
        policy = VLAPolicy.from_pretrained(folder, device="cpu")
        assert policy.backbone.family == family
        torch.manual_seed(1)  # flow matching's draws
        found.append(imitation_loss(policy, frames).item())
    assert found[1] < 0.95 * found[0]


def test_parts_of_an_update_add_up_to_it(demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--env", "Toy-Reach", "--dataset", str(demos), "-n", "3", "--batch-size", "8", "--seed", "0"]
    rest = ["--eval-episodes", "0", "--device", "cpu", "--num-threads", "1", *TINY]
    for extra in ([], ["--micro-batch-size", "3"]):
        assert sft.run([*flags, *extra, *rest]) == 0
    whole, parts = (
        [json.loads(line) for line in Path(f"logs/sft/Toy-Reach_{k}/metrics.jsonl").read_text().splitlines()]
        for k in (1, 2)
    )
    for row, in_parts in zip(whole, parts, strict=True):
        assert row["train/loss"] == pytest.approx(in_parts["train/loss"], rel=1e-4)
        assert row["train/actor/grad_norm"] == pytest.approx(in_parts["train/actor/grad_norm"], rel=1e-3)


def test_demonstrations_of_another_arm_are_refused(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = demos / "meta/info.json"
    whole = path.read_text()
    try:
        path.write_text(whole.replace('"v3.0"', '"v2.1"'))
        assert guarded(sft.run, ["--env", "Toy-Reach", "--dataset", str(demos), "--policy", "openvla-oft"]) == 2
    finally:
        path.write_text(whole)
    said = capsys.readouterr().err
    assert "is of LeRobotDataset v2.1, only v3.0 is read; lerobot's convert_dataset_v21_to_v30" in said
    assert len(said.splitlines()) == 1
