from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.agents import AgentRecipe
from benchmarks.evidence.frozen import freeze, frozen_hash, hash_of, resolved, settings_of
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


def test_ppo_and_grpo_have_the_steps_of_their_recipe_or_its_own() -> None:
    shorter = replace(RECIPE, n_timesteps=5000)
    assert [settings_of(algo, shorter)["n_timesteps"] for algo in ("ppo", "grpo", "qc")] == [5000, 5000, 10_000]
    assert [settings_of(algo, RECIPE)["n_timesteps"] for algo in ("ppo", "grpo", "qc")] == [80_000, 80_000, 10_000]


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


def test_each_split_has_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: dict[str, list[str]] = {}

    def step(one: Trial, name: str, *arguments: object) -> None:
        commands[name] = [str(argument) for argument in arguments]

    def given(name: str, flag: str) -> str:
        return commands[name][commands[name].index(flag) + 1]

    monkeypatch.setattr(Trial, "step", step)
    monkeypatch.setattr(
        Trial, "costs", lambda one: {"start": 10.0, "sft": 169.0, "ppo": 100.0, "grpo": 60.0, "qc": 900.0}
    )
    monkeypatch.setattr(Trial, "decoding", lambda one, stage: "likeliest")
    monkeypatch.setattr(Trial, "chosen", lambda one, stage: one.candidates(stage)[0])
    meta = tmp_path / "seed_3" / "MetaWorld-window-open" / "demonstrations" / "meta"
    meta.mkdir(parents=True)
    counts = {"tried": 12, "episodes": 10, "frames": 800}
    (meta / "vla_zoo.json").write_text(json.dumps({"settings": {"options": {"image_size": 64}}, **counts}))
    recipe = replace(RECIPE, seed=3, algorithms=("ppo", "grpo", "qc"))
    Trial(recipe, tmp_path, ("longer", "more", "dagger"), 4).train()
    assert given("qc", "-params") == f"demonstrations:{meta.parent}"
    assert "-params" not in commands["ppo"]
    assert given("grpo", "-n") == "80000"  # PPO's, half of its own recipe's
    # 80,000 steps of 100 to a demonstration: 80 of its own, and two failures of 100 for every ten; 160 updates of 1 s
    # and 100 s of PPO. Of the 800 a round of DAgger has a third.
    assert [given(name, "-n") for name in ("further", "taken-over-1", "taken-over-3")] == ["800", "267", "267"]
    assert len({given(name, "--seed") for name in commands if name.startswith(("taken-over", "further"))}) == 4
    # Each learns from all episodes so far, the last as long as the others.
    assert [given(name, "-n") for name in ("dagger-1", "dagger")] == ["160", "260"]
    assert {given(name, "-n") for name in commands if name.startswith(("longer", "more"))} == {"260"}
    learned = commands["dagger"][commands["dagger"].index("--dataset") + 1 : commands["dagger"].index("-n")]
    assert [Path(one).name for one in learned] == ["demonstrations", "taken-over-1", "taken-over-2", "taken-over-3"]
    for name in ("ppo", "longer-0.001", "more", "dagger-1", "dagger"):
        assert given(name, "--eval-split") == "validation"
    assert given("evaluate more validation-mean", "--split") == "validation"
    assert given("evaluate ppo test", "--split") == "test"
    test = commands["evaluate ppo test"]
    assert test[test.index("-params") + 1 :] == [
        "policy_kwargs:{greedy: likeliest}",
        "env_kwargs:{task_seed: 4000, sampled_starts: 4}",
    ]
