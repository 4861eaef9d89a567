"""The table of docs/scale-out.md, worked out by hand for one row, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.on_paper import LORA_BYTES, LORA_PARAMETERS, Recipe, needs, table


def test_eight_gpus_with_adapters_by_hand():
    one = needs(8, Recipe(), LORA_PARAMETERS, LORA_BYTES)
    # 8 GPUs x 8 envs x 64 decisions x 8 steps; at 21.8 steps a second and core in 60 s: 25.05 cores.
    assert one.simulator_steps == 32_768
    assert one.cores == 26
    # 26 workers of 2.2 GB and 38 further slots of 0.4 GB; 4096 decisions of 197,506 B.
    assert one.simulator_gb == pytest.approx(72.4)
    assert one.columns_gb == pytest.approx(0.809, abs=1e-3)
    # 112,991,744 parameters of 4 B: 0.452 GB; eight steps of 2 x 7/8 of it; one copy.
    assert one.gradients_gb == pytest.approx(8 * 1.75 * 0.451967, rel=1e-5)
    assert one.weights_gb == pytest.approx(0.451967, rel=1e-5)


def test_the_page_shows_this_table():
    page = (Path(__file__).parents[2] / "docs" / "scale-out.md").read_text(encoding="utf-8")
    for line in table((8, 64, 512), Recipe()):
        assert line in page
