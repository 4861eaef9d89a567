"""What a policy that is rolled out is opened with, and what is refused before a simulator starts."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vla_gym
from tests.zoo.cli import arm_reach
from vla_policies import VLAPolicy
from zoo import enjoy, evaluate
from zoo import train as train_command
from zoo.cli.main import guarded

KEY = "libero_spatial_no_noops"
L1 = {"head": "l1", "use_state": True, "cameras": ["image", "wrist_image"]}


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of `arm_reach`; nothing of it was played yet."""
    monkeypatch.setattr("vla_gym.registry._ADDED", [])
    vla_gym.register_benchmark("tests.zoo.cli.arm_reach:arm_benchmark", num_tasks={"Arm-Reach": 3})
    arm_reach.PLAYED.clear()
    return "Arm-Reach"


@pytest.fixture
def fixture(golden_root: Path) -> Path:
    """OpenVLA-OFT's tiny folder in its makers' layout, regression head and state projector included."""
    return golden_root / "openvla_oft_tiny"


def played_by_library(folder: Path, env: str, options: dict[str, Any]) -> np.ndarray:
    """Actions of the first start state's episode, `[T, A]`."""
    wrist = "wrist_image" in options.get("cameras", ())
    envs = vla_gym.make_vec(env, 1, chunk=8, wrist_camera=wrist, autoreset_mode="disabled")
    arm_reach.PLAYED.clear()
    policy = VLAPolicy.from_pretrained(
        folder,
        family="openvla-oft",
        unnorm_key=KEY,
        backbone_kwargs=options,
        action_spec=envs.benchmark.action_spec,
        device="cpu",
    )
    first = {name: np.zeros(1, dtype=int) for name in ("task_id", "trial_id")}
    obs, _ = envs.reset(options={"reset_mask": np.ones(1, dtype=bool), **first})
    ended = np.zeros(1, dtype=bool)
    while not ended.all():
        actions, _ = policy.predict(obs, deterministic=True)
        obs, _, terminated, truncated, _ = envs.step(actions)
        ended = terminated | truncated
    envs.close()
    return np.stack(arm_reach.PLAYED)


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ([], L1),
        (
            ["-params", "policy_kwargs:{backbone_kwargs: {head: tokens, use_state: false, cameras: [image]}}"],
            {"head": "tokens", "use_state": False},
        ),
    ],
    ids=["as trained", "tokens of one camera"],
)
def test_the_command_line_acts_as_the_library_bit_for_bit(
    fixture: Path,
    arm: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    options: dict[str, Any],
) -> None:
    asked = ["--env", arm, "--policy", str(fixture), "--unnorm-key", KEY, "--device", "cpu", "--eval-episodes", "1"]
    assert evaluate.run([*asked, *argv, "-o", str(tmp_path / "r.json")]) == 0
    by_command = np.stack(arm_reach.PLAYED)
    says = "actions of the regression head" if options["head"] == "l1" else "deterministic actions"
    assert says in json.loads((tmp_path / "r.json").read_text())["summary"]
    by_library = played_by_library(fixture, arm, options)
    assert by_command.shape == by_library.shape
    assert np.array_equal(by_command.view(np.uint32), by_library.view(np.uint32))
    assert capsys.readouterr().err == ""


def test_each_file_of_a_folder_is_read_once(
    fixture: Path, arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Counter[str] = Counter()
    path_open = Path.open

    def counted(path: Path, *args: Any, **options: Any) -> Any:
        opened[path.name] += path.parent == fixture
        return path_open(path, *args, **options)

    monkeypatch.setattr(Path, "open", counted)
    asked = ["--env", arm, "--policy", str(fixture), "--unnorm-key", KEY, "--device", "cpu", "--eval-episodes", "1"]
    assert evaluate.run([*asked, "-o", str(tmp_path / "r.json")]) == 0
    files = ("config.json", "dataset_statistics.json", "preprocessor_config.json", "tokenizer.json")
    # The tokenizer's library reads it for itself, after it was hashed.
    assert {name: opened[name] for name in files} == dict.fromkeys(files, 1) | {"tokenizer.json": 2}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--stochastic"], "acts through its regression head (head: l1), which gives one action and no distribution"),
        (
            ["--temperature", "1.6"],
            "ask for deterministic actions, or open it with -params 'policy_kwargs:{backbone_kwargs: {head: tokens}}'",
        ),
        (["--rounds", "2"], "--rounds 2 would play every start state 2 times alike"),
        (["-params", "policy_kwargs:{greedy: mean}"], "greedy is of action tokens"),
        (["-params", "policy_kwargs:{family: pi0}"], "is read as one of: openvla-oft, openvla"),
        (["-params", "wrist_camera:false"], "the policy looks at ['image', 'wrist_image'], the environment gives"),
        (["-params", "state:false"], "the policy was made for state_dim=8, the environment has state_dim=0"),
        (["-params", "chunk:4"], "the policy was made for chunk=8, the environment has chunk=4"),
    ],
)
def test_what_cannot_act_as_asked_is_refused_before_a_simulator_starts(
    fixture: Path,
    arm: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    says: str,
) -> None:
    def no_simulator(*args: object, **options: object) -> None:
        raise AssertionError("a simulator was started")

    monkeypatch.setattr("vla_gym.make_vec", no_simulator)
    asked = ["--env", arm, "--policy", str(fixture), "--unnorm-key", KEY, "--device", "cpu", "--eval-episodes", "1"]
    assert guarded(evaluate.run, [*asked, *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_training_refuses_a_head_without_a_distribution(
    fixture: Path, arm: str, capsys: pytest.CaptureFixture[str], algo: str
) -> None:
    options = f"policy_kwargs:{{unnorm_key: {KEY}, backbone_kwargs: {{head: l1}}}}"
    argv = ["--algo", algo, "--env", arm, "--policy", str(fixture), "-params", options, "--dry-run"]
    assert guarded(train_command.run, argv) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "acts through its regression head (head: l1)" in line
    assert "-params 'policy_kwargs:{backbone_kwargs: {head: tokens}}'" in line


def test_another_copy_without_heads_is_openvla_oft_by_its_name(
    fixture: Path, arm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zoo.enjoy.open_window", lambda title, *, fps: None)
    folder = tmp_path / "Openvla-oft-SFT-libero10-traj1"
    shutil.copytree(fixture, folder, ignore=shutil.ignore_patterns("*.pt", "golden*", "value_heads*"))
    asked = ["--env", arm, "--policy", str(folder), "--unnorm-key", KEY, "--device", "cpu"]
    assert enjoy.run([*asked, "--episodes", "1", "--no-render"]) == 0
    # Chunks of eight: an episode of twelve steps takes two decisions.
    assert capsys.readouterr().err == ""
