"""Experiments' scripts: their variants are settings that exist."""

from __future__ import annotations

import pytest

from experiments.ablation import VARIANTS
from zoo.cli.run_flags import resolve_new_run
from zoo.train import parser


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_the_ablation_is_a_run(name: str) -> None:
    algo, settings = VARIANTS[name]
    if "bc_coef" in settings:
        settings = {**settings, "bc_dataset": "demos"}
    pairs = [f"{key}:{value}" for key, value in settings.items()]
    flags = ["--algo", algo, "--env", "Toy-Reach", *(["-params", *pairs] if pairs else [])]
    assert set(settings) <= set(resolve_new_run(parser().parse(flags)).algo_kwargs)
