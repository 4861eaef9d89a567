"""`zoo.collect`, `zoo.sft`, then `zoo.train`: demonstrations to a policy that RL goes on with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from zoo import collect, sft, train
from zoo.cli.main import guarded, main
from zoo.runs.lookup import find_run, policy_folder

ENV = "MetaWorld/drawer-close"
ONE = "-n 1 -o x"
PICTURES = ["image_size:32", "env_kwargs:{render_quality: fast}"]


@pytest.mark.parametrize(
    ("command", "flags", "says"),
    [
        ("collect", "", "--env is missing"),
        ("collect", f"--env {ENV}", "say who acts: --expert"),
        ("collect", f"--env {ENV} --expert -o x", "-n is missing"),
        ("collect", f"--env {ENV} --expert -n 2 -o x -params chunk:4", "-params chunk"),
        ("collect", "--env Toy-Reach --expert -n 2 -o x", "has no scripted expert"),
        ("collect", f"--env {ENV} --expert -i y -n 2 -o x", "--run is for policies"),
        ("collect", f"--env {ENV} --policy nano -n 2 -o x --noise 0.1", "--noise is for --expert"),
        ("collect", f"--env {ENV} --expert -n 2 -o x --gae-lambda 0", "--gae-lambda is for policies"),
        ("collect", f"--env {ENV} --expert -n 2 -o x --on-worker-error restart", "cannot be collected"),
        ("collect", f"{ONE} --student x", "--student needs --expert"),
        ("collect", f"{ONE} --env {ENV} --expert --student-share 0.5", "--student-share is for --student RUN"),
        ("collect", f"{ONE} --expert --student x -i y", "--run does not go with --student RUN"),
        ("collect", f"{ONE} --expert --student x --policy nano", "--policy does not go with --student RUN"),
        ("collect", f"{ONE} --expert --student x --wander 0.2", "--wander does not go with --student RUN"),
        ("collect", f"{ONE} --env Toy-Reach --policy nano --wander 0.2", "--wander is for --expert"),
        ("collect", f"{ONE} --env {ENV} --expert --wander 0", "--wander"),
        ("collect", f"{ONE} --expert --student x --gamma 0.9", "--gamma does not go with --student RUN"),
        ("sft", f"--env {ENV}", "--dataset is missing"),
        ("sft", f"--env {ENV} --dataset none", "no folder 'none'. Collect demonstrations with"),
        ("sft", f"--env {ENV} --dataset none -params gamma:0.9", "-params gamma"),
    ],
)
def test_what_is_wrong_is_said(
    command: str,
    flags: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, *flags.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_a_policys_episodes_carry_what_it_thought(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    asked = ["--env", "Toy-Reach", "--policy", "nano", "--stochastic", "--device", "cpu", "-o", "seen"]
    assert collect.run([*asked, "--keep-failures", "-n", "3", "--num-envs", "2"]) == 0
    assert "3 episodes" in capsys.readouterr().out
    info = json.loads(Path("seen/meta/info.json").read_text())
    shapes = {name: info["features"][name]["shape"] for name in info["features"] if "vla_zoo" in name}
    assert shapes == {
        "vla_zoo.logprob": [2],
        "vla_zoo.value": [1],
        "vla_zoo.advantage": [1],
        "vla_zoo.chunk_step": [1],
    }
    assert info["features"]["next.done"] == {"dtype": "bool", "shape": [1], "names": None}
    first = pq.read_table("seen/data/chunk-000/file-000.parquet").to_pydict()
    assert first["vla_zoo.chunk_step"][:5] == [0, 1, 2, 3, 0]
    assert first["vla_zoo.value"][0] == first["vla_zoo.value"][3] != first["vla_zoo.value"][4]
    assert all(number < 0 for number in first["vla_zoo.logprob"][0])
    from zoo.demonstrations.lerobot_reader import read_dataset

    assert [one.start.task_id for one in read_dataset(tmp_path / "seen")] == [0, 1, 2]
    # Without the first start state the others are the same.
    assert collect.run([*asked[:-1], "later", "--keep-failures", "-n", "2", "--skip", "1"]) == 0
    later = read_dataset(tmp_path / "later")
    for one, other in zip(read_dataset(tmp_path / "seen")[1:], later, strict=True):
        assert one.start_state == other.start_state
        np.testing.assert_array_equal(one.action_TA, other.action_TA)
    # One episode at a time gives the same dataset.
    assert collect.run([*asked[:-1], "one", "--keep-failures", "-n", "3", "--num-envs", "1"]) == 0
    for one, other in zip(read_dataset(tmp_path / "seen"), read_dataset(tmp_path / "one"), strict=True):
        np.testing.assert_array_equal(one.action_TA, other.action_TA)
    assert guarded(collect.run, [*asked, "--keep-failures", "-n", "4", "--gamma", "0.5"]) == 2
    assert "was collected with gamma=0.99, now it is 0.5" in capsys.readouterr().err


POLICY = ["--env", "Toy-Reach", "--policy", "nano", "--device", "cpu", "-n", "3", "--num-envs", "2"]


@pytest.mark.parametrize("output", ["afile", "afile/d", "/proc/d"])
def test_a_place_without_room_for_a_dataset_is_said_before_anything_starts(
    output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def opened(*args: object, **kwargs: object) -> None:
        raise AssertionError("simulators were started")

    monkeypatch.setattr("vla_gym.make_vec", opened)
    monkeypatch.chdir(tmp_path)
    Path("afile").touch()
    assert guarded(collect.run, [*POLICY, "-o", output]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot write a dataset under '{output}'" in line


def test_a_collection_without_a_single_episode_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)

    take = collect.kept_episodes
    monkeypatch.setattr(collect, "kept_episodes", lambda shown, *_, **__: ([], 75))
    assert guarded(collect.run, [*POLICY, "-o", "demos/none"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none of the 150 start states that were tried was solved, and nothing was written" in line
    assert not list(tmp_path.iterdir())
    # What is there stays, also when no more come to it.
    monkeypatch.setattr(collect, "kept_episodes", take)
    assert collect.run([*POLICY, "--keep-failures", "-o", "demos/some"]) == 0
    monkeypatch.setattr(collect, "kept_episodes", lambda shown, *_, **__: ([], 75))
    more = [*POLICY, "-n", "4", "--keep-failures", "-o", "demos/some"]
    assert collect.run(more) == 0
    assert "3 of 4 episodes" in capsys.readouterr().out
    assert json.loads(Path("demos/some/meta/info.json").read_text())["total_episodes"] == 3


@pytest.mark.sim
def test_three_commands_from_an_expert_to_reinforcement_learning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("metaworld", "pyarrow"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    asked = ["--env", ENV, "--expert", "-o", "demos", "--num-envs", "2", "-params", *PICTURES]
    assert collect.run([*asked, "-n", "1"]) == 0
    assert collect.run([*asked, "-n", "2"]) == 0  # goes on, and throws nothing away
    said = capsys.readouterr().out
    assert "2 episodes" in said
    # The policy is to see pictures of the same kind.
    assert f"vla-zoo sft --env {ENV} --dataset demos -params {shlex.join(PICTURES)}\n" in said
    from zoo.demonstrations.lerobot_reader import read_dataset

    shown = read_dataset(tmp_path / "demos")
    assert [one.start.trial_id for one in shown] == [0, 1]
    assert shown[0].start_state != shown[1].start_state
    assert {one.instruction for one in shown} == {"Push and close a drawer"}
    assert all(np.asarray(one.images["image"]).std() > 10 for one in shown)
    capsys.readouterr()
    assert guarded(collect.run, [*asked, "-n", "4", "--noise", "0.1"]) == 2
    assert "was collected with noise=0.0, now it is 0.1" in capsys.readouterr().err

    tiny = "policy_kwargs:{backbone_kwargs: {size: tiny}}"
    taught = [*PICTURES, "chunk:8", tiny]
    learning = ["--env", ENV, "--dataset", "demos", "-n", "8", "--batch-size", "8", "--seed", "0"]
    shared = ["--eval-episodes", "1", "--device", "cpu", "-params", *taught]
    assert sft.run([*learning, *shared]) == 0
    said = capsys.readouterr().out
    assert "8 of 8" in said
    assert "all episodes" in said
    rows = [
        json.loads(line) for line in Path("logs/sft/MetaWorld-drawer-close_1/metrics.jsonl").read_text().splitlines()
    ]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    run = find_run("logs/sft/MetaWorld-drawer-close_1")
    assert yaml.safe_load((run.path / "config.yml").read_text())["seed"] == 0

    going_on = ["--algo", "ppo", "--env", ENV, "--policy", str(policy_folder(str(run.path))), "-n", "32"]
    settings = [*PICTURES, "num_envs:2", "n_steps:2", "batch_size:4"]
    assert train.run([*going_on, "--eval-episodes", "1", "--device", "cpu", "--seed", "0", "-params", *settings]) == 0
    assert "next:" in capsys.readouterr().out
