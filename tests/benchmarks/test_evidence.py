from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.agents import AgentRecipe
from benchmarks.evidence import Trial, longer_updates, over_seeds, p_value, table

RECIPE = AgentRecipe(env="MetaWorld/window-open", demonstrations=10, sft_updates=160, algorithms=("ppo",))


def trial(folder: Path, seed: int = 1, controls: tuple[str, ...] = ("longer",)) -> Trial:
    return Trial(replace(RECIPE, seed=seed), folder, controls, 4)


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


def test_the_interval_is_over_seeds() -> None:
    # Deviation 0.1 over three seeds: 4.303 x 0.1 / sqrt(3).
    mean, half = over_seeds([0.5, 0.6, 0.7])
    assert (mean, half) == pytest.approx((0.6, 0.24843), abs=1e-4)
    assert over_seeds([0.5]) == (0.5, math.inf)


def test_seeds_of_a_start_state_count_as_one() -> None:
    nothing = {"a": False, "b": False, "c": False}
    # Differences 2, 1 and 0: of the four signs of the first two, two sums are as far from 0.
    trained = [{"a": True, "b": True, "c": False}, {"a": True, "b": False, "c": False}]
    assert p_value([nothing, nothing], trained) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="the same start states"):
        p_value([nothing], [{"a": True}])


def test_decoding_is_chosen_on_the_validation_split(tmp_path: Path) -> None:
    one = trial(tmp_path)
    write_result(one, "ppo", "validation-mean", "1000")
    write_result(one, "ppo", "validation-likeliest", "1100")
    write_result(one, "sft", "validation-mean", "1000")
    write_result(one, "sft", "validation-likeliest", "0001")
    assert (one.decoding("ppo"), one.decoding("sft")) == ("likeliest", "mean")


def test_the_table_compares_with_the_stronger_control(tmp_path: Path) -> None:
    trials = [trial(tmp_path, seed) for seed in (1, 2)]
    for one, sft, longer, ppo in zip(trials, ("1000", "0100"), ("1100", "1100"), ("1111", "1110"), strict=True):
        for stage, solved in (("sft", sft), ("longer", longer), ("ppo", ppo)):
            write_result(one, stage, "test", solved)
        costs = {"demonstrations": 60, "sft": 120, "longer": 600, "ppo": 480}
        done = {name: {"command": "", "cpu_seconds": seconds} for name, seconds in costs.items()}
        (one.folder / "steps.json").write_text(json.dumps(done))
    (row,) = table({RECIPE.env: trials}).splitlines()[2:]
    # Start states 2 and 3 differ, by 2 and by 1: p is 0.5. The rates 1 and 3/4: 12.706 x 0.17678 / sqrt(2) = 158.8 %.
    assert row == (
        "| MetaWorld/window-open | PPO | 2 x 4 | 25.0 ± 0.0 % (25.0, 25.0) | 50.0 ± 0.0 % (50.0, 50.0) |  | "
        "87.5 ± 158.8 % (100.0, 75.0) | longer | 0.5 | 3.0 / 11.0 / 11.0 |"
    )


def test_each_split_has_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: dict[str, list[str]] = {}

    def step(one: Trial, name: str, *arguments: object) -> None:
        commands[name] = [str(argument) for argument in arguments]

    monkeypatch.setattr(Trial, "step", step)
    monkeypatch.setattr(Trial, "costs", lambda one: {"start": 10.0, "sft": 169.0, "ppo": 100.0})
    monkeypatch.setattr(Trial, "decoding", lambda one, stage: "likeliest")
    meta = tmp_path / "seed_1" / "MetaWorld-window-open" / "demonstrations" / "meta"
    meta.mkdir(parents=True)
    (meta / "info.json").write_text(json.dumps({"total_episodes": 10, "total_frames": 800}))
    trial(tmp_path, controls=("longer", "more")).train()
    # 80,000 steps of 80 to a demonstration; 160 updates of 1 s and 100 s of PPO.
    assert commands["further"][commands["further"].index("-n") + 1] == "1000"
    assert commands["further"][commands["further"].index("--noise") + 1] == "0.1"
    assert commands["longer"][commands["longer"].index("-n") + 1] == "260"
    assert "--noise" not in commands["demonstrations"]
    for name in ("ppo", "longer", "more"):
        assert commands[name][commands[name].index("--eval-split") + 1] == "validation"
    assert commands["evaluate more validation-mean"][
        commands["evaluate more validation-mean"].index("--split") + 1
    ] == ("validation")
    test = commands["evaluate ppo test"]
    assert test[test.index("--split") + 1] == "test"
    assert test[test.index("-params") + 1 :] == [
        "policy_kwargs:{greedy: likeliest}",
        "env_kwargs:{task_seed: 1000, sampled_starts: 4}",
    ]
