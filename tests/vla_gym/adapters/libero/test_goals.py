"""Goal predicates: by hand on a four-body scene, and against LIBERO's own on real tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.vla_gym.adapters.libero import libero_probe

mujoco = pytest.importorskip("mujoco", reason="needs the libero extra")
from vla_gym.adapters.libero.goals import Condition, goal_satisfied  # noqa: E402

pytestmark = pytest.mark.sim

SCENE = """
<mujoco>
  <worldbody>
    <body name="plate" pos="0 0 0"><geom name="plate" type="cylinder" size=".1 .01"/></body>
    <body name="bowl"><freejoint/><geom name="bowl" type="sphere" size=".05"/></body>
    <body name="box" pos="1 0 0"><geom name="box" type="box" size=".2 .2 .01"/>
      <site name="region" type="box" size=".1 .1 .05" pos="0 0 .06"/></body>
    <body name="drawer" pos="0 1 0"><joint name="slide" type="slide" axis="1 0 0"/><geom size=".01"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture
def scene() -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_string(SCENE)
    return model, mujoco.MjData(model)


def check(
    condition: Condition,
    scene: tuple[mujoco.MjModel, mujoco.MjData],
    bowl: tuple[float, float, float] = (9.0, 9.0, 9.0),
    slide: float = 0.0,
) -> bool:
    model, data = scene
    data.qpos[:3], data.qpos[7] = bowl, slide
    mujoco.mj_forward(model, data)
    return goal_satisfied([condition], model, data)


def test_on_an_object_wants_above_within_three_centimetres_and_touching(scene) -> None:
    model, _ = scene
    condition = Condition(
        kind="on_object",
        body=model.body("bowl").id,
        target=model.body("plate").id,
        contact=((model.geom("plate").id,), (model.geom("bowl").id,)),
    )
    assert check(condition, scene, (0.0, 0.029, 0.058))  # sphere of 5 cm, plate top at 1 cm: 2 mm deep
    assert not check(condition, scene, (0.0, 0.031, 0.058))  # too far from the centre
    assert not check(condition, scene, (0.0, 0.0, 0.065))  # 5 mm above
    assert not check(condition, scene, (0.0, 0.0, -0.058))  # below


def test_in_a_region_is_a_box_one_centimetre_deeper_than_drawn(scene) -> None:
    model, _ = scene
    condition = Condition(
        kind="in_region", body=model.body("bowl").id, target=model.site("region").id, size=(0.1, 0.1, 0.05)
    )
    assert check(condition, scene, (1.09, 0.0, 0.06))
    assert not check(condition, scene, (1.11, 0.0, 0.06))
    assert check(condition, scene, (1.0, 0.0, 0.001))  # region's floor 0.01, minus 0.01
    assert not check(condition, scene, (1.0, 0.0, -0.001))


def test_on_a_region_is_up_to_ten_centimetres_above_its_top_and_touching_its_owner(scene) -> None:
    model, _ = scene
    condition = Condition(
        kind="on_region",
        body=model.body("bowl").id,
        target=model.site("region").id,
        size=(0.1, 0.1, 0.001),
        contact=((model.geom("box").id,), (model.geom("bowl").id,)),
    )
    # Site at height 0.06 and half height 0.001: the centre must be between 0.056 and 0.161, and touching
    # the box (top 0.01, radius 0.05) means at most 0.06.
    assert check(condition, scene, (1.05, 0.0, 0.058))
    assert not check(condition, scene, (1.05, 0.0, 0.062))
    assert not check(condition, scene, (1.11, 0.0, 0.058))
    assert not check(condition, scene, (1.05, 0.0, 0.055))


@pytest.mark.parametrize(("compare", "at_threshold"), [("<", False), ("<=", True), (">", False), (">=", True)])
def test_a_joint_condition_compares_with_its_threshold(scene, compare: str, at_threshold: bool) -> None:
    condition = Condition(kind="joint", qpos=(7,), compare=compare, threshold=0.5)
    assert check(condition, scene, slide=0.5) is at_threshold
    assert check(condition, scene, slide=0.4) is compare.startswith("<")


@pytest.mark.parametrize(
    "env_id",
    [
        "LIBERO-Long/9",
        *(
            pytest.param(f"LIBERO-{one}", marks=pytest.mark.thorough)
            for one in ("Object/0", "Goal/1", "Spatial/0", "Goal/7")
        ),
    ],
)
def test_goals_agree_with_liberos_own_predicates_on_300_placements(env_id: str, probe: Callable[..., Any]) -> None:
    found = probe(libero_probe.goals, env_id, 300)
    assert all(ours == theirs for ours, theirs in found)
    assert 5 <= sum(solved for _, solved in found) <= 295
