"""LIBERO's expert: which part of a goal is next, its actions, and real tasks of each skill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.zoo.experts.test_libero_placing import DOWN, block
from vla_gym import find_benchmark, make_vec
from vla_gym.adapters.libero.scene import Hand, Placing, Scene
from vla_gym.specs import StartState, Task
from zoo.demonstrations.recorder import demonstrate
from zoo.experts.base import expert_class
from zoo.experts.libero import LiberoExpert, next_part

TASK = Task(name="put", instruction="put it", horizon=100, num_trials=1, suite="libero_object")


def scene(hand: tuple[float, float, float], *met: bool) -> Scene:
    """A 4 x 4 x 6 cm block at x = 10 cm that goes into a basket at y = 20 cm, once for each of `met`."""
    thing = block(0.1, 0.0, 0.03, (0.02, 0.02, 0.03))
    parts = [Placing(met=one, thing=thing, grip=thing, target=block(0.0, 0.2, 0.07, (0.06, 0.06, 0.07))) for one in met]
    return Scene(hand=Hand(point_3=np.array(hand), quat_4=DOWN), parts=tuple(parts))


def test_actions_are_ways_over_the_controllers_range() -> None:
    action = LiberoExpert(TASK).action(scene((0.1, 0.01, 0.132), False).to_vector())
    # 1 cm in -y and 2 cm down, in units of 5 cm; the hand is turned right; open.
    np.testing.assert_allclose(action, [0, -0.2, -0.4, 0, 0, 0, -1], atol=1e-6)
    assert action.dtype == np.float32
    assert np.abs(LiberoExpert(TASK).action(scene((2.0, 2.0, 2.0), False).to_vector())).max() == 1.0


@pytest.mark.parametrize(("met", "index"), [((False, False), 0), ((True, False), 1), ((False, True), 0), ((True,), 0)])
def test_the_first_part_that_does_not_hold_is_next(met: tuple[bool, ...], index: int) -> None:
    assert next_part(scene((0.0, 0.0, 0.3), *met)) == index


@pytest.mark.sim
@pytest.mark.parametrize("env_id", ["LIBERO-Object/5", "LIBERO-Goal/0", "LIBERO-Goal/5", "LIBERO-Goal/7"])
def test_it_solves_a_placing_a_drawer_a_plate_and_a_knob(env_id: str) -> None:
    pytest.importorskip("libero")
    benchmark = replace(find_benchmark(env_id), cameras=())
    envs = make_vec(benchmark, 1, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0)
    try:
        (shown,) = demonstrate(envs, expert_class(benchmark), [(StartState(task_id=0, trial_id=0), 0)])
    finally:
        envs.close()
    assert shown.success
    assert shown.length < 140
