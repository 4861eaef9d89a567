"""The walk in CONTRIBUTING.md is the one that a decision and an update take."""

from __future__ import annotations

import re

import pytest
from measure_house import walks
from rooms import ROOT

BEFORE_AN_UPDATE = {"zoo/algorithms/advantages.py"}
"""Advantages belong to the rollout's end; the page names them beside the update that uses them."""
IN_PASSING = {
    *("vla_gym/observation.py", "vla_gym/vector/vector_env.py", "vla_gym/workers/pool.py"),
    "vla_gym/vector/start_states.py",  # where an episode ends within the decision
    "zoo/distributed/process_group.py",
}
"""Files of which a decision executes a line or two."""


@pytest.mark.processes
def test_the_walk_passes_the_files_that_the_page_names() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = page.split("\n## The walk\n")[1].split("\n## ")[0]
    named = [set(re.findall(r"`([\w/]+\.py)`", part)) for part in walk.split("\nOne update")]
    decision, update = (set(files) for files in walks(ROOT))
    assert named[0] - decision <= {"scripts/measure_house.py"}
    assert named[1] - update <= BEFORE_AN_UPDATE
    assert decision - named[0] <= IN_PASSING
    assert {file for file in update if file.startswith("zoo/algorithms/")} <= named[1]
