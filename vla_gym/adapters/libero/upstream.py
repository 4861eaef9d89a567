"""LIBERO's own objects read into plain numbers, where tasks are compiled: arm, goal, lamps, placement samplers.

`domain` is LIBERO's environment, reset, as `make_domain` returns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from vla_gym.adapters.libero.goals import Condition, as_comparison
from vla_gym.adapters.libero.osc import ArmIndex
from vla_gym.adapters.libero.placements import JointSpan, Ride, StartRange, StartRegions
from vla_gym.adapters.libero.tasks import LAYOUT_SEED

FIXTURES, IN_REGIONS = "MultiRegionRandomSampler", ("TableRegionSampler", "Libero100TableRegionSampler")
"""Upstream's classes of samplers in the workspace: of fixtures, and of objects on a table or floor."""
ON_SITES, IN_SITES, ON_OBJECTS = "SiteRegionRandomSampler", "InSiteRegionRandomSampler", "ObjectBasedSampler"
STRAIGHT = 1e-9
"""Metres by which a place that rides on a drawn joint may leave its straight way."""


@dataclass(frozen=True, kw_only=True)
class Lamp:
    """A burner whose glow follows its knob (FlatStove.turn_on and set_visualization upstream)."""

    site: int
    qpos: int
    threshold: float
    """Knob position at and above which it glows."""


def make_domain(bddl: Path) -> Any:
    """Return LIBERO's environment after `seed(LAYOUT_SEED); reset()`, without cameras or a GL context."""
    from libero.libero.envs.env_wrapper import ControlEnv

    _prepare_robosuite()
    control = ControlEnv(bddl_file_name=str(bddl), use_camera_obs=False, has_offscreen_renderer=False)
    control.seed(LAYOUT_SEED)
    control.reset()
    return control.env


@cache
def _prepare_robosuite() -> None:
    """Make robosuite's resets what they are with cameras, and cheap."""
    from robosuite.environments.base import MujocoEnv
    from robosuite.utils.binding_utils import MjSim

    reset_internal = MujocoEnv._reset_internal

    def reset_as_with_cameras(env: Any) -> None:
        env.sim.forward()  # opening a render context does this, and it moves the solver's warm start
        reset_internal(env)

    MujocoEnv._reset_internal = reset_as_with_cameras
    MjSim.from_xml_string = classmethod(lambda cls, xml: cls(copy(_model(xml))))


@lru_cache(maxsize=1)
def _model(xml: str) -> mujoco.MjModel:
    """The compiled scene: the constructor and `reset` both build it, and so do tasks that share it."""
    return mujoco.MjModel.from_xml_string(xml)


def read_arm(domain: Any) -> ArmIndex:
    """Return where the Panda sits in the model."""
    robot, model = domain.robots[0], domain.sim.model
    return ArmIndex(
        site=int(model.site_name2id(robot.controller.eef_name)),
        hand_body=int(model.body_name2id(robot.robot_model.eef_name)),
        qpos=_ints(robot._ref_joint_pos_indexes),
        qvel=_ints(robot._ref_joint_vel_indexes),
        actuators=_ints(robot._ref_joint_actuator_indexes),
        gripper_qpos=_ints(robot._ref_gripper_joint_pos_indexes),
        gripper_actuators=_ints(robot._ref_joint_gripper_actuator_indexes),
    )


def read_goal(domain: Any) -> tuple[Condition, ...]:
    """Return the goal's predicates; raise `NotImplementedError` for one that has no counterpart here."""
    return tuple(_condition(domain, predicate) for predicate in domain.parsed_problem["goal_state"])


def _condition(domain: Any, predicate: list[str]) -> Condition:
    kind, *names = predicate
    states = [domain.object_states_dict[name] for name in names]
    if kind in ("open", "close", "turnon", "turnoff"):
        return _joint_condition(domain, kind, states[0])
    moved, target = states
    body = int(domain.obj_body_id[moved.object_name])
    if target.object_state_type == "object" and kind == "on":
        return Condition(
            kind="on_object",
            body=body,
            target=int(domain.obj_body_id[target.object_name]),
            contact=(_geoms(domain, target.object_name), _geoms(domain, moved.object_name)),
        )
    if target.object_state_type == "site" and kind in ("on", "in"):
        contact = None
        if kind == "on" and domain.get_object(target.parent_name) is not None:
            contact = (_geoms(domain, target.parent_name), _geoms(domain, moved.object_name))
        return Condition(
            kind=f"{kind}_region",
            body=body,
            target=int(domain.sim.model.site_name2id(target.object_name)),
            size=tuple(float(extent) for extent in domain.object_sites_dict[target.object_name].size),
            contact=contact,
        )
    raise NotImplementedError(f"LIBERO goal predicate {predicate} has no counterpart here")


def _joint_condition(domain: Any, kind: str, state: Any) -> Condition:
    if state.object_state_type == "site":
        joints = domain.object_sites_dict[state.object_name].joints
        owner = domain.get_object(state.parent_name)
    else:
        owner = domain.get_object(state.object_name)
        joints = owner.joints
    method = {"open": "is_open", "close": "is_close", "turnon": "turn_on", "turnoff": "turn_off"}[kind]
    ranges = owner.object_properties["articulation"]
    compare, threshold = as_comparison(getattr(owner, method), [x for span in ranges.values() for x in span])
    return Condition(
        kind="joint",
        qpos=_ints(domain.sim.model.get_joint_qpos_addr(joint) for joint in joints),
        compare=compare,
        threshold=threshold,
        every=kind in ("close", "turnoff"),
    )


def read_lamps(domain: Any) -> Iterator[Lamp]:
    """Yield the burners that glow."""
    for name in domain.visualization_sites_list:
        owner = domain.get_object(name)
        threshold = min(owner.object_properties["articulation"]["default_turnon_ranges"])
        for site, _ in owner.object_properties["vis_site_names"].values():
            (joint,) = owner.joints
            yield Lamp(
                site=int(domain.sim.model.site_name2id(site)),
                qpos=int(domain.sim.model.get_joint_qpos_addr(joint)),
                threshold=float(threshold),
            )


def _geoms(domain: Any, name: str) -> tuple[int, ...]:
    return _ints(domain.sim.model.geom_name2id(geom) for geom in domain.get_object(name).contact_geoms)


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def read_start_regions(domain: Any) -> StartRegions:
    """Return the ranges that start states are drawn from.

    Raises `NotImplementedError` for a sampler that has no counterpart here.
    """
    model, data = domain.sim.model._model, domain.sim.data._data
    spans = tuple(_spans(domain))
    return StartRegions(
        qpos=tuple(data.qpos.tolist()),
        num_velocities=int(model.nv),
        arm=_ints(domain.robots[0]._ref_joint_pos_indexes),
        spans=spans,
        placings=(
            *(_in_workspace(domain, sampler) for sampler in domain.placement_initializer.samplers.values()),
            *_on_places(domain, domain.conditional_placement_initializer, spans),
            *_on_places(domain, domain.conditional_placement_on_objects_initializer, spans),
        ),
    )


def _spans(domain: Any) -> Iterator[JointSpan]:
    """Upstream's list grows with every reset; the last sampler of a name decides."""
    for name, sampler in {sampler.name: sampler for sampler in domain.object_property_initializers}.items():
        in_site = domain.object_states_dict[name].object_state_type == "site"
        owner = domain.object_sites_dict[name] if in_site else domain.get_object(name)
        low, high, *_ = sampler.joint_ranges
        yield JointSpan(
            qpos=_ints(domain.sim.model.get_joint_qpos_addr(joint) for joint in owner.joints),
            low=float(low),
            high=float(high),
        )


def _in_workspace(domain: Any, sampler: Any) -> StartRange:
    (thing,) = sampler.mujoco_objects
    kind = type(sampler).__name__
    if kind == FIXTURES and domain.is_fixture(thing.name):
        body = domain.sim.model.body_name2id(thing.root_body)
        place_3 = domain.sim.model.body_pos[body].tolist()
        return StartRange(name=thing.name, qpos=None, base_3=tuple(place_3), **_cylinder(thing))
    if kind not in IN_REGIONS:
        raise NotImplementedError(f"LIBERO's {kind} of {thing.name} has no counterpart here")
    return _movable(domain, sampler, np.array(sampler.reference_pos, dtype=np.float64))


def _on_places(domain: Any, samplers: Any, spans: tuple[JointSpan, ...]) -> Iterator[StartRange]:
    for name, sampler in samplers.samplers.items():
        arguments = samplers.sample_args[name]
        kind, support = type(sampler).__name__, domain.get_object(arguments["reference"])
        top_3 = np.array([0.0, 0.0, float(support.top_offset[-1])])
        if kind == ON_OBJECTS and not domain.is_fixture(support.name):
            yield _movable(domain, sampler, top_3, on=support.name)
        elif kind in (ON_SITES, IN_SITES) and domain.is_fixture(support.name):
            site_3, ride = _site(domain, arguments["site_name"], spans)
            base_3 = site_3 + top_3 if kind == ON_SITES else site_3
            yield _movable(domain, sampler, base_3, ride=ride, shrink=kind == ON_SITES)
        else:
            raise NotImplementedError(f"LIBERO's {kind} on {support.name} has no counterpart here")


def _movable(
    domain: Any,
    sampler: Any,
    base_3: np.ndarray,
    *,
    on: str | None = None,
    ride: Ride | None = None,
    shrink: bool = True,
) -> StartRange:
    """`shrink`: whether this kind of sampler heeds `ensure_object_boundary_in_range`."""
    (thing,) = sampler.mujoco_objects
    cylinder = _cylinder(thing)
    margin = cylinder["radius"] if shrink and sampler.ensure_object_boundary_in_range else 0.0
    x, y, z = (float(number) for number in base_3)
    (x_range,), (y_range,) = sampler.x_ranges, sampler.y_ranges
    return StartRange(
        name=thing.name,
        qpos=int(domain.sim.model.get_joint_qpos_addr(thing.joints[-1])[0]),
        base_3=(x, y, z + float(sampler.z_offset) - cylinder["bottom"]),
        on=on,
        ride=ride,
        x_range=(float(x_range[0]) + margin, float(x_range[1]) - margin),
        y_range=(float(y_range[0]) + margin, float(y_range[1]) - margin),
        turns=tuple(_turns(sampler)),
        keeps_clear=bool(sampler.ensure_valid_placement),
        **cylinder,
    )


def _cylinder(thing: Any) -> dict[str, Any]:
    return {
        "radius": float(thing.horizontal_radius),
        "bottom": float(thing.bottom_offset[-1]),
        "top": float(thing.top_offset[-1]),
    }


def _turns(sampler: Any) -> Iterator[tuple[str, float, float]]:
    """(axis, low, high) of each turn; a sampler has one range about one axis, or a range for each of several."""
    (thing,) = sampler.mujoco_objects
    if hasattr(thing, "init_quat"):
        raise NotImplementedError(f"LIBERO's {thing.name} starts from a turn of its own")
    ranges = sampler.rotation
    if not isinstance(ranges, Mapping):
        ranges = {sampler.rotation_axis: (0.0, 2 * np.pi) if ranges is None else ranges}
    for axis, ends in ranges.items():
        yield axis, float(np.min(ends)), float(np.max(ends))


def _site(domain: Any, name: str, spans: tuple[JointSpan, ...]) -> tuple[np.ndarray, Ride | None]:
    """The place `[3]` of a part of a fixture with all drawn joints at their low ends, and the one that carries it."""
    model, site = domain.sim.model._model, int(domain.sim.model.site_name2id(name))
    lows = [span.low for span in spans]

    def place(values: list[float]) -> np.ndarray:
        data = mujoco.MjData(model)
        for span, value in zip(spans, values, strict=True):
            data.qpos[list(span.qpos)] = value
        mujoco.mj_kinematics(model, data)
        return data.site_xpos[site].copy()

    start_3, rides = place(lows), []
    for index, span in enumerate(spans):
        half, full = ([*lows] for _ in range(2))
        half[index], full[index] = (span.low + span.high) / 2, span.high
        way_3 = place(full) - start_3
        if np.abs(place(half) - start_3 - way_3 / 2).max() > STRAIGHT:
            raise NotImplementedError(f"LIBERO's {name} turns with a joint whose start is drawn")
        if np.abs(way_3).max() > STRAIGHT:
            rides.append(Ride(span=index, way_3=tuple(way_3.tolist())))
    if len(rides) > 1:
        raise NotImplementedError(f"LIBERO's {name} moves with several joints whose start is drawn")
    return start_3, rides[0] if rides else None
