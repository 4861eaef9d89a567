"""The plans of docs/memory.md."""

from __future__ import annotations

import re

import memory_plans
import pytest

PAGE = memory_plans.PAGE.read_text(encoding="utf-8").partition(memory_plans.MARK)[2]


@pytest.mark.parametrize(("algo", "title"), [("ppo", "### PPO"), ("grpo", "### GRPO")])
def test_every_recipe_of_a_large_network_has_its_plan(algo: str, title: str) -> None:
    tables = dict(zip(re.findall("### [A-Z]+", PAGE), re.split("### [A-Z]+", PAGE)[1:], strict=True))
    named = set(re.findall(r"`([^`]+/[^`]+)`", tables[title]))
    assert named == {key for one, key in memory_plans.recipes() if one == algo}


def test_a_recipe_that_fits_says_how_and_how_much() -> None:
    # 0.3 M parameters: whatever the card, all of a minibatch at once.
    _, ranks, whole, *fitting = memory_plans.row("ppo", "Toy-Reach/smolvla")
    assert ranks == "1 (one)"
    assert fitting == [f"128 at once: {whole}"] * 3
