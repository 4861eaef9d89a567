from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from benchmarks.agents import AgentRecipe, Workshop, read_recipes, table
from zoo.config.hyperparams import load_hyperparams
from zoo.files import packaged_folder
from zoo.runs.folder import folder_name

ROOT = Path(__file__).parents[2]

RECIPE = AgentRecipe(env="Toy-Reach", demonstrations=3, sft_updates=2, splits=("train",))


def write_result(shop: Workshop, stage: str, solved: list[bool]) -> None:
    episodes = [
        {"task_id": 0, "start_state": str(number), "success_once": success} for number, success in enumerate(solved)
    ]
    shop.result(stage, "train").write_text(json.dumps({"env": "Toy-Reach", "episodes": episodes}))


def write_costs(shop: Workshop, **seconds: float) -> None:
    done = {step: {"command": f"python -m zoo.{step}", "cpu_seconds": one} for step, one in seconds.items()}
    (shop.folder / "steps.json").write_text(json.dumps(done))


def test_the_table_holds_rates_changes_and_costs(tmp_path: Path) -> None:
    shop = Workshop(RECIPE, tmp_path)
    write_result(shop, "sft", [True, False, False, False])
    write_result(shop, "ppo", [True, True, True, True])
    write_result(shop, "grpo", [False, True, True, False])
    write_costs(shop, collect=30, sft=90, ppo=120, grpo=60)
    ppo, grpo = table([shop]).splitlines()[2:]
    # Three gained and none lost: p = 2 / 2^3.
    assert "| 25% [5%, 70%] of 4 | 100% [51%, 100%] of 4 | 3 / 0 | 0.2 | 2.0 + 2.0 |" in ppo
    assert "| 50% [15%, 85%] of 4 | 2 / 1 | 1 | 2.0 + 1.0 |" in grpo


def test_a_training_that_was_stopped_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, said, python = (tmp_path / name for name in ("calls", "said", "python"))
    python.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ncat {said}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    shop = Workshop(RECIPE, tmp_path)
    run = shop.run("sft")
    said.write_text(f"stopped and saved; go on with: python -m zoo.sft -i {run}\n")
    with pytest.raises(SystemExit, match="'sft' was stopped and saved; repeat the command"):
        shop.step("sft", "sft", "-n", 5)
    assert shop.costs() == {}
    run.mkdir(parents=True)
    said.write_text("done\n")
    shop.step("sft", "sft", "-n", 5)
    shop.step("sft", "sft", "-n", 5)
    assert calls.read_text().splitlines() == ["-m zoo.sft -n 5", f"-m zoo.sft -i {run}"]
    assert run.is_dir()
    assert set(shop.costs()) == {"sft"}


def test_parts_of_other_environments_are_collected_by_themselves_and_learned_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: dict[str, tuple[object, ...]] = {}
    monkeypatch.setattr(Workshop, "step", lambda shop, name, *arguments: commands.update({name: arguments}))
    parts = {"MetaWorld/reach": {"demonstrations": 20, "wander": 0.25}, "MetaWorld/push": {}}
    Workshop(replace(RECIPE, noise=0.1, algorithms=(), parts=parts), tmp_path).train()
    reach, push = (dict(pairwise(commands[f"collect MetaWorld-{task}"])) for task in ("reach", "push"))
    assert (reach["--env"], reach["-n"], reach["--wander"], reach["--noise"]) == ("MetaWorld/reach", 20, 0.25, 0.1)
    assert (push["--env"], push["-n"], push["--noise"]) == ("MetaWorld/push", RECIPE.demonstrations, 0.1)
    assert "--wander" not in push
    at = commands["sft"].index("--dataset")
    assert commands["sft"][at + 1 : at + 3] == (reach["-o"], push["-o"])
    assert reach["-o"] != push["-o"]


def test_words_that_begin_anew_are_learned_after_the_rest_and_shipped_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: dict[str, tuple[object, ...]] = {}
    monkeypatch.setattr(Workshop, "step", lambda shop, name, *arguments: commands.update({name: arguments}))
    shop = Workshop(replace(RECIPE, words_updates=7, paraphrases="words.yml", algorithms=("ppo",)), tmp_path)
    shop.train()
    first, words, ppo = (dict(pairwise(map(str, commands[name]))) for name in ("sft", "words", "ppo"))
    assert "--paraphrases" not in first
    assert (words["-n"], words["--paraphrases"], words["--policy"]) == ("7", "words.yml", str(shop.run("sft") / "best"))
    assert words["-params"] == "policy_kwargs:{backbone_kwargs: {words: wordllama}}"
    assert ppo["--policy"] == str(shop.policy("sft")) == f"{words['-f']}/sft/Toy-Reach_1/best"


def test_every_shipped_agent_is_of_its_recipe() -> None:
    shipped = 0
    for recipe in read_recipes(packaged_folder("hyperparams") / "agents.yml"):
        file = ROOT / "agents" / "sft" / folder_name(recipe.env) / "config.yml"
        if not file.is_file():
            continue
        made, shipped = yaml.safe_load(file.read_text()), shipped + 1
        kept = made["policy_kwargs"]["backbone_kwargs"]
        kept.pop("privileged_dim", None)  # which the data say
        wanted = load_hyperparams("ppo", recipe.env, "nano").values.get("policy_kwargs", {}).get("backbone_kwargs", {})
        for name, _, value in (one.partition(":") for one in recipe.sft_params):
            if name == "policy_kwargs":
                wanted = {**wanted, **yaml.safe_load(value)["backbone_kwargs"]}
        updates, coef = recipe.sft_updates, recipe.privileged_coef
        if recipe.words_updates:
            updates, wanted = recipe.words_updates, {"words": "wordllama"}
            coef = recipe.words_privileged_coef
        assert (made["n_timesteps"], made["seed"], kept) == (updates, recipe.seed, wanted), recipe.env
        assert made["algo_kwargs"].get("privileged_coef", 0.0) == coef, recipe.env
    assert shipped == 9
