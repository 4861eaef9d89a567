"""`--policy ws://...` in the commands that roll a policy out: what is asked, refused, and recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vla_gym.errors import VLAZooError
from vla_policies.checkpoint_io.json_records import to_json
from zoo import collect, enjoy, evaluate, play, record_video
from zoo.agents.agent import Agent
from zoo.agents.play_session import PlaySession
from zoo.cli.agent import plan_rollout
from zoo.serving.declaration import Declaration

from ..serving.conftest import Serving, declaration, echo, serving

__all__ = ["declaration", "serving"]

FAST = ["--num-envs", "2", "--device", "cpu"]


@pytest.fixture
def url(serving: Serving, declaration: Declaration) -> Iterator[str]:
    with serving(echo(declaration), declaration) as (_, port):
        yield f"ws://127.0.0.1:{port}"


def planned(*argv: str) -> Agent:
    return plan_rollout(evaluate.parser().parse([*argv, "--eval-episodes", "3"]), episodes=3)


def test_the_servers_declaration_chooses_environment_and_options(url: str) -> None:
    plan = planned("--policy", url)
    assert (plan.policy.name, plan.env) == (url, "Toy-Reach")
    assert {name: plan.env_options[name] for name in ("chunk", "image_size", "wrist_camera")} == {
        "chunk": 3,
        "image_size": 8,
        "wrist_camera": False,
    }
    assert plan.served is not None
    assert plan.served.is_ours


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--env", "MetaWorld/reach"], "made for state_dim=2, the environment has state_dim=4"),
        (["--temperature", "2"], "temperature: settings of a policy are its server's"),
        (["-params", "policy_kwargs:{backbone_kwargs: {head: l1}}"], "settings of a policy are its server's"),
        (["-params", "image_size:16"], "image_size=8, the environment has image_size=16"),
        (["--rounds", "2"], "sample with --stochastic"),
    ],
)
def test_what_does_not_go_with_a_server(url: str, argv: list[str], said: str) -> None:
    with pytest.raises(VLAZooError, match=said):
        planned("--policy", url, *argv)


def test_flags_of_servers_are_refused_elsewhere() -> None:
    for flag in ("--token-file", "--server-conf"):
        with pytest.raises(VLAZooError, match=f"{flag} is for a policy server"):
            planned("--policy", "nano", "--env", "Toy-Reach", flag, "x")


def test_evaluate_writes_the_servers_declaration(url: str, tmp_path: Path, declaration: Declaration) -> None:
    file = tmp_path / "results.json"
    assert evaluate.run(["--policy", url, "--eval-episodes", "3", *FAST, "-o", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["policy"] == url
    assert len(record["episodes"]) == 3
    assert record["server"] == to_json(declaration)


def test_a_film_a_show_and_a_dataset(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "film.mp4"
    assert record_video.run(["--policy", url, "--episodes", "2", *FAST, "-o", str(film)]) == 0
    assert film.stat().st_size > 0
    assert enjoy.run(["--policy", url, "--episodes", "2", "--no-render", *FAST]) == 0
    assert "of 2 episodes solved" in capsys.readouterr().out
    session = PlaySession.open(plan_rollout(play.parser().parse(["--policy", url, *FAST[2:]]), episodes=None))
    session.instruct("to the blue one")
    state = session.step()
    assert (state.decisions, state.decision.entropy, set(state.images)) == (1, None, {"image", "wrist_image"})
    session.close()
    dataset = tmp_path / "dataset"
    assert collect.run(["--policy", url, "-n", "2", "--keep-failures", "-o", str(dataset), *FAST]) == 0
    features = json.loads((dataset / "meta" / "info.json").read_text())["features"]
    assert not {"vla_zoo.logprob", "vla_zoo.value", "vla_zoo.advantage"} & set(features)
