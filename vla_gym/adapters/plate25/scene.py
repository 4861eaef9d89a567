"""The WidowX 250 S as the suite drives it: gripper poses relative to the last target, solved by inverse kinematics.

Numbers and formulas: ManiSkill 3.0.1, `WidowX250SBridgeDatasetFlatTable`, control mode
`arm_pd_ee_target_delta_pose_align2_gripper_pd_joint_pos` on CPU physics, and the same solver.
"""

from __future__ import annotations

import colorsys
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sapien
from sapien import physx
from sapien.wrapper.pinocchio_model import PinocchioModel

from vla_gym.adapters.plate25.assets import Assets
from vla_gym.adapters.plate25.catalogue import OBJECTS
from vla_gym.adapters.plate25.images import FRAME
from vla_gym.adapters.plate25.layouts import Place, Placed
from vla_gym.rotations import multiply
from vla_gym.system.vulkan import DEVICE_VARIABLE, use_light_shaders

ARM_JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
FINGER_JOINTS = ("left_finger", "right_finger")
JOINTS = (*ARM_JOINTS, *FINGER_JOINTS)
STIFFNESS = (
    *(1169.7891719504198, 730.0, 808.4601346394447),
    *(1229.1299089624076, 1272.2760456418862, 1056.3326605132252),
    *(1000.0, 1000.0),
)
DAMPING = (
    *(330.0, 180.0, 152.12036565582588, 309.6215302722146, 201.04998711007383, 269.51458932695414),
    *(200.0, 200.0),
)
FORCE_LIMIT = (200.0, 200.0, 100.0, 100.0, 100.0, 100.0, 60.0, 60.0)
CLOSED, OPEN = 0.014, 0.038
"""Finger targets for gripper actions -1 and +1, metres: 1 mm beyond the joints' limits, so that they press."""
HAND = "ee_gripper_link"
SOLVER_STEPS = 100

START_QPOS = np.array([-0.01840777, 0.0398835, 0.22242722, -0.00460194, 1.36524296, 0.00153398, 0.037, 0.037])
"""Trained start pose, radians and metres."""
BASE = sapien.Pose([0.147, 0.028, 0.870], [0, 0, 0, 1])
BASE_AWAY = sapien.Pose([0.147, 0.028, 1.870], [0, 0, 0, 1])
"""Where the robot waits while objects come to rest."""


class Arm:
    """The robot of one scene.

    Args:
        scene: gets the robot as its first body.
        urdf: robot description; beside it, an `.srdf` of the same name.
    """

    def __init__(self, scene: sapien.Scene, urdf: Path) -> None:
        loader = scene.create_urdf_loader()
        loader.fix_root_link = True
        self.body = loader.load(str(urdf))
        self.links = {link.name: link for link in self.body.links}
        joints = {joint.name: joint for joint in self.body.active_joints}
        if tuple(joints) != JOINTS:
            raise RuntimeError(f"{urdf} has joints {list(joints)}, expected {list(JOINTS)}")
        self._joints = [joints[name] for name in JOINTS]
        for joint, stiffness, damping, force in zip(self._joints, STIFFNESS, DAMPING, FORCE_LIMIT, strict=True):
            joint.set_drive_properties(stiffness, damping, force_limit=force, mode="force")
            joint.set_friction(0.0)
        for link in self.body.links:
            link.disable_gravity = True
        self._solver = _solver(urdf)
        self.target = (np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))
        """Commanded pose of the hand, in the base's frame: position `[3]` and quaternion (w, x, y, z)."""

    def reset(self, qpos: np.ndarray) -> None:
        """Stand still at joint positions `[8]`, which become the target."""
        self.body.set_root_pose(BASE)
        self.body.set_qpos(qpos)
        self.body.set_qvel(np.zeros(len(JOINTS)))
        self.body.set_qf(np.zeros(len(JOINTS)))
        self._drive_to(qpos)
        self._solver.compute_forward_kinematics(qpos)
        pose = self._solver.get_link_pose(0)
        self.target = (np.array(pose.p, dtype=np.float64), np.array(pose.q, dtype=np.float64))

    def set_action(self, action_A: np.ndarray) -> None:
        """Set the target from dx, dy, dz (metres), Euler XYZ angles (radians), gripper (-1 closed .. +1 open).

        Both are along the axes of the base and relative to the previous target. A target that the solver cannot
        reach stays the target, and the arm holds where it is.
        """
        place, turn = self.target
        place = place + action_A[:3]
        turn = multiply(euler_quaternion(action_A[3:6]), turn)
        turn /= np.linalg.norm(turn)
        self.target = (place, turn)
        now = np.array(self.body.qpos, dtype=np.float64)
        found, reached, _ = self._solver.compute_inverse_kinematics(
            0,
            sapien.Pose(place, turn),
            initial_qpos=now,
            active_qmask=np.array([1] * len(ARM_JOINTS) + [0] * len(FINGER_JOINTS)),
            max_iterations=SOLVER_STEPS,
        )
        goal = np.array(found if reached else now, dtype=np.float64)
        opening = float(np.clip(action_A[6], -1.0, 1.0))
        goal[len(ARM_JOINTS) :] = CLOSED + (OPEN - CLOSED) * (opening + 1.0) / 2.0
        self._drive_to(goal)

    def qpos(self) -> np.ndarray:
        """Return joint positions, float32 `[8]`, fresh."""
        return np.array(self.body.qpos, dtype=np.float32)

    def moving_state(self) -> list[np.ndarray]:
        """Return positions and speeds of the joints, the target and the drives' targets."""
        drives = [joint.drive_target for joint in self._joints]
        return [self.body.qpos, self.body.qvel, *self.target, *drives]

    def _drive_to(self, goal: np.ndarray) -> None:
        for joint, value in zip(self._joints, goal, strict=True):
            joint.set_drive_target(float(value))


def rotation(body: sapien.Entity) -> np.ndarray:
    """Return the rotation matrix of a body, float64 `[3, 3]`."""
    return np.asarray(body.pose.to_transformation_matrix(), dtype=np.float64)[:3, :3]


def euler_quaternion(angles: np.ndarray) -> np.ndarray:
    """Return a rotation by angles about x, then the turned y, then the turned z, as (w, x, y, z), float64."""
    turn = np.array([1.0, 0.0, 0.0, 0.0])
    for axis, angle in enumerate(np.asarray(angles, dtype=np.float64)):
        about = np.zeros(4)
        about[0], about[axis + 1] = np.cos(angle / 2), np.sin(angle / 2)
        turn = multiply(turn, about)
    return turn


@functools.cache
def _solver(urdf: Path) -> PinocchioModel:
    model = PinocchioModel(urdf.read_text(encoding="utf-8"), [0, 0, -9.81])
    model.set_joint_order(list(JOINTS))
    model.set_link_order([HAND])
    return model


TIMESTEP = 1 / 500
"""Seconds of physics per substep."""
SUBSTEPS = 100
"""Per policy step: 5 Hz."""
SETTLE, LONG_SETTLE = 50, 600
"""Substeps, and how many more when something still moves."""
STILL = (1e-3, 1e-2)
"""Summed linear (m/s) and angular (rad/s) speeds below which things lie still."""
FRICTION = 1.0
"""Static and dynamic, of objects and plates."""
FOCAL = 623.588
PRINCIPAL = (319.501, 239.545)
CAMERA = sapien.Pose([0, -0.16, 0.36], [0.8992917, -0.09263245, 0.35892478, 0.23209205])
"""In the frame of the robot's base."""
TABLE_TOP = 0.869532
"""Height at which the published code puts plates that already lie (RLinf `_generate_init_pose`), metres."""
TABLE_HALF = (0.5, 0.5, 0.025)
"""Half sides of the box that stands in for the table mesh, metres."""
TABLE_TURN = [0.707, 0.707, 0, 0]
TABLE_PLACE = [2.0634, 2.8313, 0.0]
SUN = ([0, 0, -1], [2.2, 2.2, 2.2])
LAMPS = (([-1, -0.5, -1], [0.7, 0.7, 0.7]), ([1, 1, -1], [0.7, 0.7, 0.7]))
AMBIENT = [0.3, 0.3, 0.3]
ROBOT_LOOK = {"specular": 0.9, "roughness": 0.3}


class Scene:
    """Bodies of one episode.

    Args:
        assets: files that were found; stand-ins replace the others.
        robot: robot description.
        placed: objects and plates, in the order in which they are built.
        frame: rows and columns of the image; other than `FRAME`, the view is squeezed into it.
    """

    def __init__(self, assets: Assets, robot: Path, placed: Sequence[Placed], frame: tuple[int, int] = FRAME) -> None:
        set_process_settings()
        self.physics = physx.PhysxCpuSystem()
        self.physics.timestep = TIMESTEP
        drawing = sapien.render.RenderSystem(sapien.Device(os.environ.get(DEVICE_VARIABLE) or "cpu"))
        self.scene = sapien.Scene([self.physics, drawing])
        self.arm = Arm(self.scene, robot)
        self._add_table(assets)
        self.bodies = [self._add(assets, thing) for thing in placed]
        self._add_lights()
        self._camera = self._add_camera(frame)
        shown = [*(link.entity for link in self.arm.body.links), *self.bodies]
        self._foreground = np.array([entity.per_scene_id for entity in shown])

    def settle(self) -> None:
        """Let things come to rest, the robot out of their way."""
        self.arm.body.set_root_pose(BASE_AWAY)
        self.run(SETTLE)
        moving = [dynamic_body(body) for body in self.bodies]
        linear = sum(float(np.linalg.norm(body.linear_velocity)) for body in moving)
        angular = sum(float(np.linalg.norm(body.angular_velocity)) for body in moving)
        if linear > STILL[0] or angular > STILL[1]:
            self.run(LONG_SETTLE)

    def run(self, substeps: int) -> None:
        for _ in range(substeps):
            self.physics.step()

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Draw now: the image, uint8 `[H, W, 3]`, and its pixels of robot, objects or plates, bool `[H, W]`."""
        self.scene.update_render()
        self._camera.take_picture()
        colour = self._camera.get_picture("Color")[..., :3]
        owner = self._camera.get_picture("PositionSegmentation")[..., 3]
        return np.ascontiguousarray(colour), np.isin(owner, self._foreground)

    def force(self, first: sapien.Entity, second: sapien.Entity) -> np.ndarray:
        """Return the contact force on `first` from `second` in the last substep, newtons, float64 `[3]`."""
        total = np.zeros(3)
        for contact in self.physics.get_contacts():
            pair = [body.entity for body in contact.bodies]
            if set(pair) == {first, second}:
                impulse = np.sum([point.impulse for point in contact.points], axis=0, initial=0.0)
                total += impulse if pair[0] == first else -impulse
        return total / TIMESTEP

    def move(self, body: sapien.Entity, place: Place, *, stop: bool) -> None:
        """Put an object elsewhere; with `stop` it also loses its speed."""
        body.set_pose(sapien.Pose(place.position, place.rotation))
        if stop:
            dynamic_body(body).set_linear_velocity(np.zeros(3))
            dynamic_body(body).set_angular_velocity(np.zeros(3))

    def moving_state(self) -> np.ndarray:
        """Return everything that moves: the arm, and poses, velocities and masses of things; float64."""
        parts = self.arm.moving_state()
        for body in self.bodies:
            dynamic = dynamic_body(body)
            parts += [body.pose.p, body.pose.q, dynamic.linear_velocity, dynamic.angular_velocity, dynamic.mass]
        return np.concatenate([np.ravel(part).astype(np.float64) for part in parts])

    def _add(self, assets: Assets, placed: Placed) -> sapien.Entity:
        thing = placed.thing
        material = physx.PhysxMaterial(FRICTION, FRICTION, 0.0)
        builder = self.scene.create_actor_builder()
        model = assets.model(placed.kind, thing.folder)
        if model is not None:
            builder.add_multiple_convex_collisions_from_file(
                str(model.collision), material=material, density=thing.density
            )
            builder.add_visual_from_file(str(model.visual))
        else:
            middle = sapien.Pose(thing.middle.tolist())
            half = (thing.size / 2).tolist()
            builder.add_box_collision(middle, half, material=material, density=thing.density)
            offset = 0 if placed.kind == "carrot" else len(OBJECTS)
            hue = (placed.index + offset) * 0.618034 % 1.0  # a golden angle apart, so that neighbours differ
            colour = [*colorsys.hsv_to_rgb(hue, 0.65, 0.85), 1.0]
            builder.add_box_visual(middle, half, material=sapien.render.RenderMaterial(base_color=colour))
        builder.initial_pose = sapien.Pose(placed.place.position, placed.place.rotation)
        return builder.build(thing.folder)

    def _add_table(self, assets: Assets) -> None:
        builder = self.scene.create_actor_builder()
        if assets.table is not None:
            turn = sapien.Pose(q=TABLE_TURN)
            builder.add_nonconvex_collision_from_file(assets.table, pose=turn)
            builder.add_visual_from_file(assets.table, pose=turn)
            builder.initial_pose = sapien.Pose(TABLE_PLACE)
        else:
            half = list(TABLE_HALF)
            builder.add_box_collision(half_size=half)
            builder.add_box_visual(half_size=half)
            builder.initial_pose = sapien.Pose([-0.16, 0.0, TABLE_TOP - half[2]])
        builder.build_static("arena")

    def _add_lights(self) -> None:
        self.scene.set_ambient_light(AMBIENT)
        for direction, colour in (SUN, *LAMPS):
            self.scene.add_directional_light(direction, colour, shadow=False)
        for link in self.arm.body.links:
            look = link.entity.find_component_by_type(sapien.render.RenderBodyComponent)
            for shape in look.render_shapes if look is not None else ():
                if isinstance(shape, sapien.render.RenderShapeTriangleMesh):
                    for part in shape.parts:
                        part.material.specular = ROBOT_LOOK["specular"]
                        part.material.roughness = ROBOT_LOOK["roughness"]

    def _add_camera(self, frame: tuple[int, int]) -> sapien.render.RenderCameraComponent:
        height, width = frame
        down, across = height / FRAME[0], width / FRAME[1]
        camera = sapien.render.RenderCameraComponent(width, height)
        camera.set_focal_lengths(FOCAL * across, FOCAL * down)
        camera.set_principal_point(PRINCIPAL[0] * across, PRINCIPAL[1] * down)
        camera.near, camera.far = 0.01, 100.0
        self.arm.links["base_link"].entity.add_component(camera)
        camera.local_pose = CAMERA
        return camera


def dynamic_body(body: sapien.Entity) -> physx.PhysxRigidDynamicComponent:
    """Return the component with a body's mass and velocities."""
    return body.find_component_by_type(physx.PhysxRigidDynamicComponent)


def set_process_settings() -> None:
    """Set the options that SAPIEN keeps per process, as ManiSkill 3.0.1's `SimConfig` sets them."""
    use_light_shaders()
    physx.set_default_material(0.3, 0.3, 0.0)
    physx.set_shape_config(contact_offset=0.02, rest_offset=0.0)
    physx.set_body_config(solver_position_iterations=15, solver_velocity_iterations=1, sleep_threshold=0.005)
    physx.set_scene_config(
        gravity=np.array([0, 0, -9.81]),
        bounce_threshold=2.0,
        enable_pcm=True,
        enable_tgs=True,
        enable_ccd=False,
        enable_enhanced_determinism=False,
        enable_friction_every_iteration=True,
        cpu_workers=0,
    )
