"""Experts solve real tasks through the environment; a benchmark without one says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vla_gym import find_benchmark, make_vec
from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo.demonstrations.recorder import demonstrate
from zoo.experts import expert_class
from zoo.experts.maniskill import AIMS

PLATE = "ManiSkill-Plate25"


@pytest.mark.parametrize("env_id", ["Toy-Reach", "ManiSkill/PokeCube"])
def test_a_benchmark_without_an_expert_says_so(env_id: str) -> None:
    with pytest.raises(BadValue, match=env_id):
        expert_class(find_benchmark(env_id))


CASES: list[tuple[str, str, dict[str, Any], tuple[int, ...], int | None]] = [
    # A placing, a drawer, a dish and a knob.
    *(("libero", f"LIBERO-{name}", {}, (0,), 140) for name in ("Object/5", "Goal/0", "Goal/5", "Goal/7")),
    # Half of RollBall's steps are the ball's own way.
    *(("mani_skill", f"ManiSkill/{name}", {}, (0, 49), 70 if name == "RollBall" else 40) for name in AIMS),
    *(("mani_skill", PLATE, {"action_units": units}, (0,), None) for units in ("physical", "scaled")),
    *(
        ("metaworld", f"MetaWorld/{name}", {"protocol": "lerobot"}, (0, 49), 120)
        for name in ("reach", "push", "window-close", "button-press-topdown")
    ),
    # Start states that upstream's policies miss.
    ("metaworld", "MetaWorld/door-open", {"protocol": "lerobot"}, (9, 16, 33), 100),
    ("metaworld", "MetaWorld/peg-insert-side", {"protocol": "lerobot"}, (2, 12, 18, 29, 41, 4), 100),
]
OFTEN = ("LIBERO-Goal/0", "ManiSkill/PickCube", PLATE, "MetaWorld/push", "MetaWorld/door-open")


@pytest.mark.sim
@pytest.mark.parametrize(
    ("package", "env_id", "options", "trials", "longest"),
    [
        pytest.param(*case, marks=() if case[1] in OFTEN and "scaled" not in str(case[2]) else pytest.mark.thorough)
        for case in CASES
    ],
)
def test_they_solve_their_tasks(
    package: str, env_id: str, options: dict[str, Any], trials: tuple[int, ...], longest: int | None
) -> None:
    pytest.importorskip(package)
    benchmark = replace(find_benchmark(env_id, **options), cameras=())
    envs = make_vec(benchmark, len(trials), chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0)
    try:
        starts = [(StartState(task_id=0, trial_id=trial), 0) for trial in trials]
        episodes = demonstrate(envs, expert_class(benchmark), starts)
    finally:
        envs.close()
    for episode in episodes:
        assert episode.success
        assert longest is None or episode.length <= longest
        assert episode.action_TA.dtype == np.float32
        assert np.abs(episode.action_TA).max() <= 1.0
