"""One episode's scene on bare SAPIEN: robot, table, the objects of this episode, one camera.

Built anew for every episode, which takes some milliseconds because SAPIEN keeps meshes and textures per process, and
which makes an episode independent of what was played before, bit for bit. Upstream keeps all 25 objects and all
plates in every scene and parks those it does not need out of sight; they touch nothing, so they are left out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sapien
from sapien import physx

from vla_gym.adapters.plate25 import stand_ins
from vla_gym.adapters.plate25.arm import Arm
from vla_gym.adapters.plate25.assets import Assets
from vla_gym.adapters.plate25.catalogue import OBJECTS
from vla_gym.adapters.plate25.layouts import Place, Placed
from vla_gym.adapters.plate25.pictures import FRAME
from vla_gym.system.sapien_shaders import use_light_shaders
from vla_gym.system.vulkan import DEVICE_VARIABLE

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
        frame: rows and columns of the picture; other than `FRAME`, the view is squeezed into it.
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
        self.arm.wait_away()
        self.run(SETTLE)
        linear, angular = self.speeds()
        if linear > STILL[0] or angular > STILL[1]:
            self.run(LONG_SETTLE)

    def run(self, substeps: int) -> None:
        """Advance physics."""
        for _ in range(substeps):
            self.physics.step()

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Draw now: the picture, uint8 `[H, W, 3]`, and its pixels of robot, objects or plates, bool `[H, W]`."""
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

    def speeds(self) -> tuple[float, float]:
        """Return the sums over objects and plates of linear (m/s) and angular (rad/s) speed."""
        moving = [dynamic_body(body) for body in self.bodies]
        linear = sum(float(np.linalg.norm(body.linear_velocity)) for body in moving)
        angular = sum(float(np.linalg.norm(body.angular_velocity)) for body in moving)
        return linear, angular

    def move(self, body: sapien.Entity, place: Place, *, stop: bool) -> None:
        """Put an object elsewhere; with `stop` it also loses its speed."""
        body.set_pose(sapien.Pose(place.position, place.rotation))
        if stop:
            dynamic_body(body).set_linear_velocity(np.zeros(3))
            dynamic_body(body).set_angular_velocity(np.zeros(3))

    def moving_state(self) -> np.ndarray:
        """Return everything that moves: joints, the controller's state, poses and velocities; float64."""
        parts = [self.arm.body.qpos, self.arm.body.qvel, self.arm.controller_state()]
        for body in self.bodies:
            dynamic = dynamic_body(body)
            parts += [body.pose.p, body.pose.q, dynamic.linear_velocity, dynamic.angular_velocity]
            parts.append(np.array([dynamic.mass]))
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
            colour = sapien.render.RenderMaterial(base_color=stand_ins.colour(placed.index + offset))
            builder.add_box_visual(middle, half, material=colour)
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
            half = list(stand_ins.TABLE_HALF)
            builder.add_box_collision(half_size=half)
            builder.add_box_visual(half_size=half)
            builder.initial_pose = sapien.Pose([-0.16, 0.0, stand_ins.TABLE_TOP - half[2]])
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
