"""An evaluation that ends early keeps what it has, and `zoo.compare --policy` plays another's start states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vla_gym
from vla_gym.errors import BadValue, ServerFailed, VLAZooError
from vla_policies import VLAPolicy
from zoo import collect, compare, evaluate, record_video
from zoo.agents.measuring import measure, weights_of
from zoo.cli.agent import plan_rollout
from zoo.serving.declaration import Declaration

from ..serving.conftest import Serving, declaration, echo, serving

__all__ = ["declaration", "serving"]


def test_a_server_that_ends_loses_no_finished_episode(
    serving: Serving, declaration: Declaration, tmp_path: Path
) -> None:
    conf = tmp_path / "conf.yml"
    conf.write_text("attempts: 1")
    file = tmp_path / "results.json"
    with serving(failing_after(declaration, 40), declaration) as (_, port):
        argv = ["--policy", f"ws://127.0.0.1:{port}", "--server-conf", str(conf), "--num-envs", "1"]
        with pytest.raises(VLAZooError, match=r"the policy failed.*finished episodes? (is|are) in .*results_partial"):
            evaluate.run([*argv, "--eval-episodes", "20", "--device", "cpu", "-o", str(file)])
    assert not file.exists()
    record = json.loads((tmp_path / "results_partial.json").read_text())
    assert 1 <= len(record["episodes"]) < 20
    assert record["planned_episodes"] == 20


def failing_after(declaration: Declaration, most: int) -> Any:
    """A policy that fails for good once it has decided so often."""
    decisions = 0

    def decide(requests: Any) -> Any:
        nonlocal decisions
        decisions += len(requests)
        if decisions > most:
            raise RuntimeError("out of memory")
        return echo(declaration)(requests)

    return decide


def test_a_film_and_a_dataset_keep_what_is_finished(serving: Serving, declaration: Declaration, tmp_path: Path) -> None:
    film, dataset, whole = tmp_path / "film.mp4", tmp_path / "dataset", tmp_path / "whole"
    with serving(failing_after(declaration, 30), declaration) as (_, port):
        argv = ["--policy", f"ws://127.0.0.1:{port}", "--num-envs", "1", "--device", "cpu"]
        with pytest.raises(ServerFailed, match=r"the policy failed.*recorded until then is in .*film\.mp4"):
            record_video.run([*argv, "--episodes", "20", "-o", str(film)])
    assert film.stat().st_size > 0

    def collected(port: int, folder: Path) -> dict[str, Any]:
        argv = ["--policy", f"ws://127.0.0.1:{port}", "--num-envs", "3", "--device", "cpu", "--keep-failures"]
        assert collect.run([*argv, "-n", "6", "-o", str(folder)]) == 0
        info: dict[str, Any] = json.loads((folder / "meta" / "info.json").read_text())
        return {name: info[name] for name in ("total_episodes", "total_frames")}

    with serving(echo(declaration), declaration) as (_, port):
        expected = collected(port, whole)
    with (
        serving(failing_after(declaration, 13), declaration, port=port) as (_, port),
        pytest.raises(ServerFailed, match=r"the policy failed.*go on after [3-5] start states"),
    ):
        collected(port, dataset)
    with serving(echo(declaration), declaration, port=port) as (_, port):
        assert collected(port, dataset) == expected


def test_compare_plays_a_served_policy_from_the_same_start_states(
    serving: Serving, declaration: Declaration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    with serving(echo(declaration), declaration) as (_, port):
        url = f"ws://127.0.0.1:{port}"
        evaluate.run(["--policy", url, "--eval-episodes", "5", "--num-envs", "2", "--device", "cpu", "-o", str(before)])
        argv = ["--before", str(before), "--policy", url, "--num-envs", "2", "--device", "cpu", "-o", str(after)]
        assert compare.run(argv) == 0
    played = [json.loads(file.read_text())["episodes"] for file in (before, after)]
    assert [{**episode, "seconds": 0} for episode in played[0]] == [{**episode, "seconds": 0} for episode in played[1]]
    assert "0 start states gained, 0 lost" in capsys.readouterr().out


def test_an_evaluation_is_filmed_beside_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", "Toy-Reach", "--policy", "nano", "--episodes", "2", "--num-envs", "1", "--device", "cpu"]
    assert evaluate.run([*flags, "--video", "-o", str(tmp_path / "mine.json")]) == 0
    said = capsys.readouterr().out
    assert "starting 1 simulators" in said
    assert said.endswith(f"video       {tmp_path}/mine.mp4\n")
    assert (tmp_path / "mine.mp4").read_bytes()[4:8] == b"ftyp"
    with pytest.raises(BadValue, match="--video records one environment"):
        evaluate.run([*flags, "--video", "--robustness"])


def test_a_record_is_of_the_weights_that_acted(tmp_path: Path) -> None:
    """A run that trains replaces its best/ between the hash of the weights and their opening."""
    argv = ["--env", "Toy-Reach", "--eval-episodes", "1", "--num-envs", "1", "--device", "cpu", "--policy"]
    envs = vla_gym.make_vec("Toy-Reach", 1)
    spaces = envs.single_observation_space, envs.single_action_space
    envs.close()
    for name in ("first", "second"):
        VLAPolicy(*spaces, lambda _: 1e-3, backbone="nano").save_pretrained(tmp_path / name)
    plan = plan_rollout(evaluate.parser().parse([*argv, str(tmp_path / "first")]), episodes=1, unplayed=True)
    weights = weights_of(plan)
    (tmp_path / "first").rename(tmp_path / "former")
    (tmp_path / "second").rename(tmp_path / "first")
    with pytest.raises(BadValue, match="first' is damaged, or was replaced while it was opened"):
        measure(plan, weights=weights, partial=tmp_path / "partial.json", progress=False)
