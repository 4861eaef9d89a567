"""A recipe's start weights and plan, without a command's flags."""

from __future__ import annotations

from zoo.cli.recipe_start import acting_settings, recipe_plan


def test_a_bare_family_stands_for_the_recipes_checkpoint_and_its_model() -> None:
    name, parts = acting_settings("ManiSkill-Plate25", "openvla-oft")
    assert name == "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Lora"
    assert parts == {"base": "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Main"}
    assert acting_settings("ManiSkill-Plate25", "someone/else") == ("someone/else", {})


def test_the_plan_is_the_one_of_the_command() -> None:
    plan = recipe_plan("ppo", "ManiSkill-Plate25", "openvla-oft")
    assert (plan.config.entry, plan.config.chunk) == ("ManiSkill-Plate25/openvla-oft", 8)
    assert (plan.batch.decisions, plan.batch.minibatches) == (2560, 4)
