"""How a policy is opened and acts, by flags and by `-params`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from zoo import collect, enjoy, evaluate, record_video
from zoo.agents.agent import Agent
from zoo.cli.agent import plan_rollout
from zoo.cli.main import guarded

TOY = ["--env", "Toy-Reach", "--policy", "nano"]


def planned(*argv: str) -> Agent:
    return plan_rollout(evaluate.parser().parse([*TOY, *argv]), episodes=3)


def test_a_temperature_means_sampled_actions() -> None:
    plan = planned("--temperature", "1.6", "--top-k", "50", "--rounds", "2", "--num-envs", "8")
    assert (plan.protocol.sample, plan.protocol.temperature, plan.protocol.top_k) == (True, 1.6, 50)
    assert plan.policy_kwargs == {"temperature": 1.6, "top_k": 50}
    # Two rounds of three start states.
    assert plan.num_envs == len(plan.episodes) == 6
    assert not planned().protocol.sample


def test_a_temperature_of_policy_kwargs_is_the_policy_s_not_a_wish_to_sample() -> None:
    plan = planned("-params", "policy_kwargs:{temperature: 0.4, greedy: mean}")
    assert plan.policy_kwargs == {"temperature": 0.4, "greedy": "mean"}
    assert not plan.protocol.sample


def test_settings_of_training_are_known_with_their_checks() -> None:
    params = ["-params", "image_size:32", "state:false", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
    plan = planned(*params)
    assert plan.env_options["image_size"] == 32
    assert plan.env_options["state"] is False
    assert plan.policy_kwargs == {"backbone_kwargs": {"size": "tiny"}}


@pytest.mark.parametrize("command", [evaluate, enjoy, record_video, collect])
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--temperature", "1", "--deterministic"], "--temperature is of sampled actions, --deterministic takes none"),
        (["--top-k", "5", "--deterministic"], "--top-k is of sampled actions"),
        (["--temperature", "0"], "--temperature: must be above 0, got '0'"),
        (["--rounds", "0"], "--rounds: must be at least 1, got '0'"),
        (["--rounds", "2"], "--rounds 2 would play every start state 2 times alike"),
        (["-params", "policy_kwargs:{temprature: 1}"], "Did you mean 'temperature'?"),
        (["-params", "policy_kwargs:{unnorm_keys: x}"], "Did you mean 'unnorm_key'?"),
        (
            ["-params", "policy_kwargs:{dtype: float16}"],
            "policy_kwargs: dtype) 'float16'. Known: auto, bfloat16, float",
        ),
        (["-params", "policy_kwargs:{value_lr: 1.0e-3}"], "value_lr is for training"),
        (["-params", "policy_kwargs:nano"], "policy_kwargs must be a mapping"),
        (["-params", "policy_kwargs:{backbone_kwargs: 3}"], "backbone_kwargs must be a mapping"),
        (["-params", "chunck:3"], "Did you mean 'chunk'?"),
        (["-params", "value_lr:1e-3"], "-params value_lr: a policy that is rolled out takes settings of the env"),
        (["-params", "chunks:3"], "Did you mean 'chunk'?"),
        (["-params", "protocol:lerobot"], "Did you mean 'env_kwargs:{protocol: ...}'?"),
        (["-params", "group_size:8"], "-params group_size: a policy that is rolled out takes settings of the env"),
        (["-params", "policy_kwargs:{temperature: 1.0}", "--temperature", "2"], "leave one out"),
        (["-params", "policy_kwargs:{unnorm_key: a}"], "got unnorm_key='a'"),
    ],
)
def test_what_cannot_be_asked(
    command: object,
    argv: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_start(*args: object, **options: object) -> None:
        raise AssertionError("simulators were started")

    monkeypatch.setattr("vla_gym.make_vec", no_start)
    more = ["-n", "1", "-o", str(tmp_path / "set")] if command is collect else []
    assert guarded(command.run, [*TOY, *argv, *more]) == 2  # type: ignore[attr-defined]
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    ("policy", "argv", "says"),
    [
        ("nano-flow", ["--temperature", "1"], "temperature is of action tokens, and policy 'nano-flow'"),
        ("nano-flow", ["-params", "policy_kwargs:{greedy: mean}"], "greedy is of action tokens"),
        ("nano-flow", ["--rounds", "2"], "draw the noise they begin at"),
    ],
)
def test_what_a_flow_policy_cannot_do(policy: str, argv: list[str], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        plan_rollout(evaluate.parser().parse(["--env", "Toy-Reach", "--policy", policy, *argv]), episodes=1)


@pytest.mark.parametrize("noise", ["--stochastic", "-params 'policy_kwargs:{backbone_kwargs: {eval_noise: random}}'"])
def test_rounds_of_a_flow_policy(noise: str) -> None:
    argv = ["--env", "Toy-Reach", "--policy", "nano-flow", "--rounds", "2", *shlex.split(noise)]
    assert plan_rollout(evaluate.parser().parse(argv), episodes=1).protocol.rounds == 2


def test_an_evaluation_says_its_temperature_and_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*TOY, "--eval-episodes", "3", "--device", "cpu", "--temperature", "1.6", "--rounds", "2"]
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file, num_envs in zip(files, ("1", "4"), strict=True):
        assert evaluate.run([*asked, "--num-envs", num_envs, "-o", str(file)]) == 0
    (line, _) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("protocol:"))
    assert "6 episodes = 2 rounds of 3 of 150 start states" in line
    assert "actions sampled at temperature 1.6" in line
    one, two = (json.loads(file.read_text()) for file in files)
    assert one["protocol"]["evaluation"]["temperature"] == 1.6
    assert (one["rounds"], one["deterministic"]) == (2, False)
    assert [episode["round"] for episode in one["episodes"]] == [0, 1] * 3
    # The same episodes, whatever their number side by side; and the two rounds are not alike.
    plays = [[(e["start_state"], e["length"], e["total_reward"]) for e in record["episodes"]] for record in (one, two)]
    assert plays[0] == plays[1]
    assert plays[0][::2] != plays[0][1::2]
