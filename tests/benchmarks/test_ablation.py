"""The ablation script: its variants are settings that exist, and its table is arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.ablation import VARIANTS, read_run, table
from zoo.cli.run_flags import resolve_new_run
from zoo.train import parser


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_run(name: str) -> None:
    algo, settings = VARIANTS[name]
    if "bc_coef" in settings:
        settings = {**settings, "bc_dataset": "demos"}
    pairs = [f"{key}:{value}" for key, value in settings.items()]
    flags = ["--algo", algo, "--env", "Toy-Reach", *(["-params", *pairs] if pairs else [])]
    config = resolve_new_run(parser().parse(flags))
    assert config.entry == "Toy-Reach/nano"
    assert set(settings) <= set(config.algo_kwargs)


def test_a_run_is_read_and_a_table_is_made(tmp_path: Path) -> None:
    rows = [{"rollout/success_once": 0.2}, {"train/loss": 1.0}, {"rollout/success_once": 0.6}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "evaluation.json").write_text(json.dumps({"success": {"success": 0.9}}))
    numbers = read_run(tmp_path)
    assert numbers == {"final": 0.9, "training": pytest.approx(0.4)}
    name = next(iter(VARIANTS))
    results = [{"variant": name, **numbers}, {"variant": name, "final": 0.7, "training": 0.2}]
    assert f"| {name} | 0.800 (0.700 to 0.900) | 0.300 | 2 |" in table(results)
