from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.agents import AgentRecipe
from benchmarks.evidence.frozen import freeze, frozen_hash, hash_of, resolved
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


def test_the_policy_that_all_begin_from_is_a_candidate(tmp_path: Path) -> None:
    one = trial(tmp_path)
    solved = {"sft": "1100", "ppo": "1000", "longer-0.0003": "1100", "longer-0.001": "1110", "longer-0.003": "0000"}
    for stage, mean in solved.items():
        write_result(one, stage, "validation-mean", mean)
        write_result(one, stage, "validation-likeliest", "0000")
    assert (one.chosen("sft"), one.chosen("ppo"), one.chosen("longer")) == ("sft", "sft", "longer-0.001")
    write_result(one, "longer-0.001", "validation-mean", "1000")
    assert one.chosen("longer") == "longer-0.0003"  # of equals the one that was trained


@pytest.mark.parametrize(
    ("stage", "minutes"), [("sft", 3), ("longer-0.001", 11), ("more", 61), ("dagger", 1114), ("ppo", 11), ("grpo", 303)]
)
def test_a_policy_costs_what_led_to_it(stage: str, minutes: float) -> None:
    steps = {
        "demonstrations": 1,
        "sft": 2,
        "longer-0.001": 10,
        "further": 20,
        "more": 40,
        "taken-over-1": 100,
        "dagger-1": 1000,
        "dagger": 11,
        "ppo": 8,
        "grpo": 300,
        "evaluate ppo test": 7,
    }
    assert cpu_minutes({name: 60.0 * one for name, one in steps.items()}, stage) == minutes


def test_a_changed_recipe_is_not_the_frozen_one(tmp_path: Path) -> None:
    file = tmp_path / "frozen.json"
    with pytest.raises(SystemExit, match="frozen is none"):
        frozen_hash(RECIPE, file)
    name = freeze(RECIPE, file)
    assert frozen_hash(replace(RECIPE, seed=9), file) == name
    with pytest.raises(SystemExit, match=f"frozen is {name}"):
        frozen_hash(replace(RECIPE, sft_updates=161), file)


def test_a_field_that_a_frozen_recipe_did_not_have_yet_changes_nothing_at_its_default(tmp_path: Path) -> None:
    file, old = tmp_path / "frozen.json", resolved(RECIPE)
    del old["draw_every"]
    file.write_text(json.dumps({RECIPE.env: {"hash": hash_of(old), "recipe": old}}))
    assert frozen_hash(RECIPE, file) == hash_of(old)
    with pytest.raises(SystemExit, match="write it down with --freeze"):
        frozen_hash(replace(RECIPE, draw_every=4), file)
