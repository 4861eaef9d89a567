from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.agents import AgentRecipe
from benchmarks.evidence.trial import Trial, cpu_minutes, longer_updates

RECIPE = AgentRecipe(env="MetaWorld/window-open", demonstrations=10, sft_updates=160, algorithms=("ppo",))


def trial(folder: Path, controls: tuple[str, ...] = ("longer",)) -> Trial:
    return Trial(replace(RECIPE, seed=3), folder, controls, 4)


def write_result(one: Trial, stage: str, name: str, solved: str) -> None:
    """`solved`: a character for each start state, 1 where it was."""
    episodes = [
        {"task_id": 0, "start_state": str(number), "success_once": character == "1"}
        for number, character in enumerate(solved)
    ]
    one.result(stage, name).write_text(json.dumps({"episodes": episodes}))


def test_the_control_takes_as_much_time_as_fine_tuning_and_the_longest_training() -> None:
    # 101 updates take 110 - 10 s, so one takes 1 s; GRPO takes as long as 300 of them.
    costs = {"start": 10.0, "sft": 110.0, "ppo": 200.0, "grpo": 300.0}
    assert longer_updates(costs, 101, ("ppo", "grpo")) == 401
    assert longer_updates(costs, 101, ("ppo",)) == 301


def test_decoding_is_chosen_on_the_validation_split(tmp_path: Path) -> None:
    one = trial(tmp_path)
    write_result(one, "ppo", "validation-mean", "1000")
    write_result(one, "ppo", "validation-likeliest", "1100")
    write_result(one, "sft", "validation-mean", "1000")
    write_result(one, "sft", "validation-likeliest", "0001")
    assert (one.decoding("ppo"), one.decoding("sft")) == ("likeliest", "mean")


@pytest.mark.parametrize(
    ("stage", "minutes"), [("sft", 3), ("longer", 11), ("more", 61), ("dagger", 114), ("ppo", 11), ("grpo", 303)]
)
def test_a_policy_costs_what_led_to_it(stage: str, minutes: float) -> None:
    steps = {
        "demonstrations": 1,
        "sft": 2,
        "longer": 10,
        "further": 20,
        "more": 40,
        "taken-over": 100,
        "dagger": 11,
        "ppo": 8,
        "grpo": 300,
        "evaluate ppo test": 7,
    }
    assert cpu_minutes({name: 60.0 * one for name, one in steps.items()}, stage) == minutes


def test_each_split_has_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: dict[str, list[str]] = {}

    def step(one: Trial, name: str, *arguments: object) -> None:
        commands[name] = [str(argument) for argument in arguments]

    def given(name: str, flag: str) -> str:
        return commands[name][commands[name].index(flag) + 1]

    monkeypatch.setattr(Trial, "step", step)
    monkeypatch.setattr(Trial, "costs", lambda one: {"start": 10.0, "sft": 169.0, "ppo": 100.0})
    monkeypatch.setattr(Trial, "decoding", lambda one, stage: "likeliest")
    meta = tmp_path / "seed_3" / "MetaWorld-window-open" / "demonstrations" / "meta"
    meta.mkdir(parents=True)
    counts = {"tried": 12, "episodes": 10, "frames": 800}
    (meta / "vla_zoo.json").write_text(json.dumps({"settings": {"options": {"image_size": 64}}, **counts}))
    trial(tmp_path, ("longer", "more", "dagger")).train()
    # 80,000 steps of 100 to a demonstration: 80 of its own, and two failures of 100 for every ten; 160 updates of 1 s
    # and 100 s of PPO.
    assert (given("further", "-n"), given("taken-over", "-n")) == ("800", "800")
    assert (given("further", "--noise"), given("taken-over", "--noise")) == ("0.1", "0.1")
    assert "--noise" not in commands["demonstrations"]
    student = Path(given("taken-over", "--student"))
    assert (student.parts[-3:], "-params" in commands["taken-over"]) == (
        ("sft", "MetaWorld-window-open_1", "best"),
        False,
    )
    assert "--student" not in commands["further"]
    assert [given(name, "-n") for name in ("longer", "more", "dagger")] == ["260"] * 3
    learned = commands["dagger"][commands["dagger"].index("--dataset") + 1 : commands["dagger"].index("-n")]
    assert [Path(one).name for one in learned] == ["demonstrations", "taken-over"]
    for name in ("ppo", "longer", "more", "dagger"):
        assert given(name, "--eval-split") == "validation"
    assert given("evaluate more validation-mean", "--split") == "validation"
    assert given("evaluate ppo test", "--split") == "test"
    test = commands["evaluate ppo test"]
    assert test[test.index("-params") + 1 :] == [
        "policy_kwargs:{greedy: likeliest}",
        "env_kwargs:{task_seed: 4000, sampled_starts: 4}",
    ]
