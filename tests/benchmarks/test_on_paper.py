"""The table of the report, worked out by hand for one row, and the report that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.on_paper import DECISION_BYTES, LORA_BYTES, LORA_PARAMETERS, Recipe, needs, replicated_bytes, table
from zoo.cli.run_flags import resolve_new_run
from zoo.config.memory_plan import rollout_needs
from zoo.train import parser
from zoo.training.run_plan import RunPlan


def test_eight_gpus_with_adapters_by_hand():
    one = needs(8, Recipe(), LORA_PARAMETERS * LORA_BYTES, replicated_bytes(LORA_PARAMETERS, 8))
    # 8 GPUs x 8 envs x 64 decisions x 8 steps; at 46.35 steps a second and core in 60 s: 11.78 cores.
    assert one.simulator_steps == 32_768
    assert one.cores == 12
    # 12 workers of 2.2 GB and 52 further slots of 0.4 GB; 4096 decisions of 197,698 B.
    assert one.simulator_gb == pytest.approx(47.2)
    assert one.columns_gb == pytest.approx(0.809, abs=1e-3)
    # 112,991,744 parameters of 4 B: 0.452 GB; eight steps of 2 x 7/8 of it; one copy.
    assert one.sent_gb == pytest.approx(8 * 1.75 * 0.451967, rel=1e-5)
    assert one.weights_gb == pytest.approx(0.451967, rel=1e-5)


def test_the_report_shows_this_table():
    report = (Path(__file__).parents[2] / "experiments" / "2026-11-on-paper.md").read_text(encoding="utf-8")
    assert all(line in report for line in table((8, 64, 512), Recipe()))


def test_a_decisions_bytes_are_those_of_the_plan():
    config = resolve_new_run(parser().parse(["--env", "LIBERO-130", "--policy", "openvla-oft"]))
    (buffer,) = rollout_needs(RunPlan.resolve(config, 1).batch, config, config.benchmark)
    assert f"{DECISION_BYTES:,} B" in buffer.what
