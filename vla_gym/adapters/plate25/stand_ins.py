"""Boxes and generated pictures for published files that are missing: arm, things, table, photos, textures.

A stand-in keeps the numbers that are known without the file (box, density, joints, masses), so every environment runs
on a bare machine and its episodes are laid out as published. Success rates on stand-ins compare with nothing else.

Source of the arm: haosulab/ManiSkill-WidowX250S v0.2.0 (joints, limits, masses; boxes are its meshes' bounding boxes,
the upper arm's only as wide as its tube, for the elbow's width would hide a third of the picture).
"""

from __future__ import annotations

import colorsys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import combinations

import numpy as np

PHOTO_SIZE = (480, 640)
"""Rows and columns of the published photos and textures."""
TABLE_TOP = 0.869532
"""Height at which the published code puts plates that already lie (RLinf `_generate_init_pose`), metres."""
TABLE_HALF = (0.5, 0.5, 0.025)
"""Half sides of the box that stands in for the table mesh, metres."""


def colour(index: int) -> tuple[float, float, float, float]:
    """Return a colour for thing `index`: hues a golden angle apart, so that neighbours differ."""
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1.0, 0.65, 0.85)
    return red, green, blue, 1.0


def photo(index: int) -> np.ndarray:
    """Return a table top of wooden boards in the hue of table `index`, uint8 `[480, 640, 3]`."""
    height, width = PHOTO_SIZE
    rng = np.random.default_rng([7, index])
    boards = np.repeat(rng.uniform(0.75, 1.0, 8), width // 8)
    grain = np.cumsum(rng.normal(0.0, 0.01, (height, width)), axis=0)
    shade = np.clip(boards[None, :] + 0.3 * (grain - grain.mean(axis=0)), 0.3, 1.0)
    base = np.array(colorsys.hsv_to_rgb(index * 0.618034 % 1.0, 0.35, 0.8))
    return (255.0 * shade[..., None] * base).astype(np.uint8)


def texture(index: int) -> np.ndarray:
    """Return a pattern of crossing waves for texture `index`, uint8 `[480, 640, 3]`."""
    height, width = PHOTO_SIZE
    rng = np.random.default_rng([11, index])
    y, x = np.mgrid[0:height, 0:width] / height
    channels = []
    for _ in range(3):
        waves = [np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(-9.0, 9.0, (3, 3))]
        channels.append(np.sum(waves, axis=0))
    pattern = np.stack(channels, axis=-1)
    return (255.0 * (pattern - pattern.min()) / (pattern.max() - pattern.min())).astype(np.uint8)


Vector = tuple[float, float, float]
X, Y, Z, BACK_Y = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)
TURN, ROLL = (-3.141592653589793, 3.141592653589793), (-3.141582653589793, 3.141582653589793)
SHOULDER, ELBOW = (-1.8849555921538759, 1.9896753472735358), (-2.1467549799530254, 1.6057029118347832)
WRIST, FINGER = (-1.7453292519943295, 2.1467549799530254), (0.015, 0.037)
COLOUR = "0.12 0.12 0.13 1"


@dataclass(frozen=True)
class Joint:
    """The joint that carries a link."""

    name: str
    kind: str
    """URDF joint type."""
    parent: str
    origin: Vector
    """In the parent's frame, metres."""
    axis: Vector = X
    limits: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Box:
    """The shape of a link."""

    centre: Vector
    size: Vector
    """Sides."""
    touches: bool = False
    """Whether it collides."""


@dataclass(frozen=True)
class Link:
    """One link of the arm."""

    name: str
    mass: float
    joint: Joint | None = None
    """None for the root."""
    box: Box | None = None
    """None: invisible, as heavy as a point."""


ARM: tuple[Link, ...] = (
    Link("base_link", mass=0.538736, box=Box((-0.0402, 0.0, 0.0358), (0.2335, 0.1531, 0.0716))),
    Link(
        "shoulder_link",
        mass=0.480879,
        joint=Joint("waist", "revolute", "base_link", (0.0, 0.0, 0.072), Z, TURN),
        box=Box((0.0, 0.0, 0.0232), (0.1022, 0.1022, 0.0525)),
    ),
    Link(
        "upper_arm_link",
        mass=0.430811,
        joint=Joint("shoulder", "revolute", "shoulder_link", (0.0, 0.0, 0.03865), Y, SHOULDER),
        box=Box((0.0, 0.0, 0.127), (0.03, 0.03, 0.2829)),
    ),
    Link(
        "upper_forearm_link",
        mass=0.234589,
        joint=Joint("elbow", "revolute", "upper_arm_link", (0.04975, 0.0, 0.25), Y, ELBOW),
        box=Box((0.0803, 0.0, 0.0), (0.1894, 0.0424, 0.0425)),
    ),
    Link(
        "lower_forearm_link",
        mass=0.220991,
        joint=Joint("forearm_roll", "revolute", "upper_forearm_link", (0.175, 0.0, 0.0), X, ROLL),
        box=Box((0.0409, 0.0054, 0.0), (0.0907, 0.0597, 0.049)),
    ),
    Link(
        "wrist_link",
        mass=0.084957,
        joint=Joint("wrist_angle", "revolute", "lower_forearm_link", (0.075, 0.0, 0.0), Y, WRIST),
        box=Box((0.0308, 0.0, 0.0076), (0.0684, 0.044, 0.0553)),
    ),
    Link(
        "gripper_link",
        mass=0.072885,
        joint=Joint("wrist_rotate", "revolute", "wrist_link", (0.065, 0.0, 0.0), X, ROLL),
        box=Box((0.0215, 0.0, 0.0076), (0.043, 0.04, 0.0553), touches=True),
    ),
    Link(
        "gripper_bar_link",
        mass=0.034199,
        joint=Joint("gripper_bar", "fixed", "gripper_link", (0.043, 0.0, 0.0)),
        box=Box((0.014, 0.0, 0.0106), (0.0291, 0.1046, 0.0504), touches=True),
    ),
    Link("fingers_link", mass=0.001, joint=Joint("ee_bar", "fixed", "gripper_bar_link", (0.023, 0.0, 0.0))),
    Link(
        "left_finger_link",
        mass=0.016246,
        joint=Joint("left_finger", "prismatic", "fingers_link", (0.0, 0.0, 0.0), Y, FINGER),
        box=Box((0.0155, -0.003, 0.0), (0.0553, 0.016, 0.029), touches=True),
    ),
    Link(
        "right_finger_link",
        mass=0.016246,
        joint=Joint("right_finger", "prismatic", "fingers_link", (0.0, 0.0, 0.0), BACK_Y, FINGER),
        box=Box((0.0155, 0.003, 0.0), (0.0553, 0.016, 0.029), touches=True),
    ),
    Link(
        "ee_gripper_link",
        mass=0.001,
        joint=Joint("ee_gripper", "fixed", "fingers_link", (0.027575, 0.0, 0.0)),
    ),
)


def arm_urdf() -> str:
    """Return the stand-in arm: the published joints, a box for each mesh. Only the gripper collides."""
    robot = ET.Element("robot", name="wx250s_stand_in")
    for link in ARM:
        element = ET.SubElement(robot, "link", name=link.name)
        _add_inertia(element, link)
        if link.box is not None:
            visual = _add_box(element, "visual", link.box)
            ET.SubElement(ET.SubElement(visual, "material", name="black"), "color", rgba=COLOUR)
            if link.box.touches:
                _add_box(element, "collision", link.box)
        if link.joint is not None:
            _add_joint(robot, link.joint, link.name)
    return ET.tostring(robot, encoding="unicode")


def arm_srdf() -> str:
    """Return the pairs of links that never collide: all of the gripper's, which overlap as boxes."""
    robot = ET.Element("robot", name="wx250s_stand_in")
    touching = [link.name for link in ARM if link.box is not None and link.box.touches]
    for first, second in combinations(touching, 2):
        ET.SubElement(robot, "disable_collisions", link1=first, link2=second, reason="Default")
    return ET.tostring(robot, encoding="unicode")


def _add_inertia(element: ET.Element, link: Link) -> None:
    """Of a solid box of that mass, or of a point as heavy as the published one."""
    inertial = ET.SubElement(element, "inertial")
    centre, about = (0.0, 0.0, 0.0), (1e-3, 1e-3, 1e-3)
    if link.box is not None:
        centre = link.box.centre
        x, y, z = (side**2 for side in link.box.size)
        about = (link.mass * (y + z) / 12, link.mass * (x + z) / 12, link.mass * (x + y) / 12)
    ET.SubElement(inertial, "origin", xyz=_text(centre), rpy="0 0 0")
    ET.SubElement(inertial, "mass", value=repr(link.mass))
    diagonal = dict(zip(("ixx", "iyy", "izz"), map(repr, about), strict=True))
    ET.SubElement(inertial, "inertia", {**diagonal, "ixy": "0", "ixz": "0", "iyz": "0"})


def _add_box(element: ET.Element, tag: str, box: Box) -> ET.Element:
    part = ET.SubElement(element, tag)
    ET.SubElement(part, "origin", xyz=_text(box.centre), rpy="0 0 0")
    ET.SubElement(ET.SubElement(part, "geometry"), "box", size=_text(box.size))
    return part


def _add_joint(robot: ET.Element, joint: Joint, child: str) -> None:
    element = ET.SubElement(robot, "joint", name=joint.name, type=joint.kind)
    ET.SubElement(element, "parent", link=joint.parent)
    ET.SubElement(element, "child", link=child)
    ET.SubElement(element, "origin", xyz=_text(joint.origin), rpy="0 0 0")
    ET.SubElement(element, "axis", xyz=_text(joint.axis))
    if joint.kind != "fixed":
        low, high = map(repr, joint.limits)
        ET.SubElement(element, "limit", lower=low, upper=high, effort="20", velocity="3.141592653589793")


def _text(vector: Vector) -> str:
    return " ".join(repr(float(number)) for number in vector)
