"""The arm that stands in for the published robot description: its joints, masses and limits, boxes for its meshes.

Source: haosulab/ManiSkill-WidowX250S v0.2.0 (joints, limits, masses; boxes are its meshes' bounding boxes,
the upper arm's only as wide as its tube, for the elbow's width would hide a third of the picture).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass

COLOUR = "0.12 0.12 0.13 1"

Vector = tuple[float, float, float]
X, Y, Z, BACK_Y = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)
TURN, ROLL = (-3.141592653589793, 3.141592653589793), (-3.141582653589793, 3.141582653589793)
FINGER = (0.015, 0.037)


@dataclass(frozen=True, kw_only=True)
class Link:
    """One link, and the joint that carries it."""

    name: str
    parent: str = ""
    """Empty for the root."""
    joint: str = ""
    kind: str = ""
    """URDF joint type."""
    origin: Vector = (0.0, 0.0, 0.0)
    """Of the joint in its parent's frame, metres."""
    axis: Vector = X
    limits: tuple[float, float] = (0.0, 0.0)
    mass: float
    centre: Vector = (0.0, 0.0, 0.0)
    """Of its box."""
    size: Vector | None = None
    """Sides of its box; None: nothing to see."""
    touches: bool = False
    """Does the box collide?"""


ARM: tuple[Link, ...] = (
    Link(name="base_link", mass=0.538736, centre=(-0.0402, 0.0, 0.0358), size=(0.2335, 0.1531, 0.0716)),
    Link(
        name="shoulder_link",
        parent="base_link",
        joint="waist",
        kind="revolute",
        origin=(0.0, 0.0, 0.072),
        axis=Z,
        limits=TURN,
        mass=0.480879,
        centre=(0.0, 0.0, 0.0232),
        size=(0.1022, 0.1022, 0.0525),
    ),
    Link(
        name="upper_arm_link",
        parent="shoulder_link",
        joint="shoulder",
        kind="revolute",
        origin=(0.0, 0.0, 0.03865),
        axis=Y,
        limits=(-1.8849555921538759, 1.9896753472735358),
        mass=0.430811,
        centre=(0.0, 0.0, 0.127),
        size=(0.03, 0.03, 0.2829),
    ),
    Link(
        name="upper_forearm_link",
        parent="upper_arm_link",
        joint="elbow",
        kind="revolute",
        origin=(0.04975, 0.0, 0.25),
        axis=Y,
        limits=(-2.1467549799530254, 1.6057029118347832),
        mass=0.234589,
        centre=(0.0803, 0.0, 0.0),
        size=(0.1894, 0.0424, 0.0425),
    ),
    Link(
        name="lower_forearm_link",
        parent="upper_forearm_link",
        joint="forearm_roll",
        kind="revolute",
        origin=(0.175, 0.0, 0.0),
        axis=X,
        limits=ROLL,
        mass=0.220991,
        centre=(0.0409, 0.0054, 0.0),
        size=(0.0907, 0.0597, 0.049),
    ),
    Link(
        name="wrist_link",
        parent="lower_forearm_link",
        joint="wrist_angle",
        kind="revolute",
        origin=(0.075, 0.0, 0.0),
        axis=Y,
        limits=(-1.7453292519943295, 2.1467549799530254),
        mass=0.084957,
        centre=(0.0308, 0.0, 0.0076),
        size=(0.0684, 0.044, 0.0553),
    ),
    Link(
        name="gripper_link",
        parent="wrist_link",
        joint="wrist_rotate",
        kind="revolute",
        origin=(0.065, 0.0, 0.0),
        axis=X,
        limits=ROLL,
        mass=0.072885,
        centre=(0.0215, 0.0, 0.0076),
        size=(0.043, 0.04, 0.0553),
        touches=True,
    ),
    Link(
        name="gripper_bar_link",
        parent="gripper_link",
        joint="gripper_bar",
        kind="fixed",
        origin=(0.043, 0.0, 0.0),
        mass=0.034199,
        centre=(0.014, 0.0, 0.0106),
        size=(0.0291, 0.1046, 0.0504),
        touches=True,
    ),
    Link(
        name="fingers_link",
        parent="gripper_bar_link",
        joint="ee_bar",
        kind="fixed",
        origin=(0.023, 0.0, 0.0),
        mass=0.001,
    ),
    Link(
        name="left_finger_link",
        parent="fingers_link",
        joint="left_finger",
        kind="prismatic",
        axis=Y,
        limits=FINGER,
        mass=0.016246,
        centre=(0.0155, -0.003, 0.0),
        size=(0.0553, 0.016, 0.029),
        touches=True,
    ),
    Link(
        name="right_finger_link",
        parent="fingers_link",
        joint="right_finger",
        kind="prismatic",
        axis=BACK_Y,
        limits=FINGER,
        mass=0.016246,
        centre=(0.0155, 0.003, 0.0),
        size=(0.0553, 0.016, 0.029),
        touches=True,
    ),
    Link(
        name="ee_gripper_link",
        parent="fingers_link",
        joint="ee_gripper",
        kind="fixed",
        origin=(0.027575, 0.0, 0.0),
        mass=0.001,
    ),
)


def arm_urdf() -> str:
    """The stand-in arm: the published joints, a box for each mesh. Only the gripper collides."""
    robot = ET.Element("robot", name="wx250s_stand_in")
    for link in ARM:
        element = ET.SubElement(robot, "link", name=link.name)
        _add_inertia(element, link)
        if link.size is not None:
            _add_box(ET.SubElement(element, "visual"), link, colour=COLOUR)
            if link.touches:
                _add_box(ET.SubElement(element, "collision"), link)
        if link.parent:
            _add_joint(robot, link)
    return ET.tostring(robot, encoding="unicode")


def arm_srdf() -> str:
    """Pairs of links that never collide: all of the gripper's, which overlap as boxes."""
    robot = ET.Element("robot", name="wx250s_stand_in")
    touching = [link.name for link in ARM if link.touches]
    for index, one in enumerate(touching):
        for other in touching[index + 1 :]:
            ET.SubElement(robot, "disable_collisions", link1=one, link2=other, reason="Default")
    return ET.tostring(robot, encoding="unicode")


def _add_inertia(element: ET.Element, link: Link) -> None:
    """Of a solid box of that mass, or of a point as heavy as the published one."""
    inertial = ET.SubElement(element, "inertial")
    ET.SubElement(inertial, "origin", xyz=_text(link.centre), rpy="0 0 0")
    ET.SubElement(inertial, "mass", value=repr(link.mass))
    if link.size is None:
        about = (1e-3, 1e-3, 1e-3)
    else:
        x, y, z = (side**2 for side in link.size)
        about = (link.mass * (y + z) / 12, link.mass * (x + z) / 12, link.mass * (x + y) / 12)
    diagonal = dict(zip(("ixx", "iyy", "izz"), map(repr, about), strict=True))
    ET.SubElement(inertial, "inertia", {**diagonal, "ixy": "0", "ixz": "0", "iyz": "0"})


def _add_box(element: ET.Element, link: Link, *, colour: str = "") -> None:
    if link.size is None:
        raise ValueError(f"{link.name} has no box")
    ET.SubElement(element, "origin", xyz=_text(link.centre), rpy="0 0 0")
    ET.SubElement(ET.SubElement(element, "geometry"), "box", size=_text(link.size))
    if colour:
        ET.SubElement(ET.SubElement(element, "material", name="black"), "color", rgba=colour)


def _add_joint(robot: ET.Element, link: Link) -> None:
    joint = ET.SubElement(robot, "joint", name=link.joint, type=link.kind)
    ET.SubElement(joint, "parent", link=link.parent)
    ET.SubElement(joint, "child", link=link.name)
    ET.SubElement(joint, "origin", xyz=_text(link.origin), rpy="0 0 0")
    ET.SubElement(joint, "axis", xyz=_text(link.axis))
    if link.kind != "fixed":
        low, high = map(repr, link.limits)
        ET.SubElement(joint, "limit", lower=low, upper=high, effort="20", velocity="3.141592653589793")


def _text(vector: Vector) -> str:
    return " ".join(repr(float(number)) for number in vector)
