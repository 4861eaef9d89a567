from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np

from vla_gym.adapters.plate25.stand_ins import ARM, arm_srdf, arm_urdf, colour, photo, texture


def joints(urdf: ET.Element) -> dict[str, list[float]]:
    """Moving joint -> origin, axis, limits."""
    found = {}
    for joint in urdf.iter("joint"):
        limit = joint.find("limit")
        if joint.get("type") in ("revolute", "prismatic") and limit is not None:
            parts = [joint.find(tag).get("xyz").split() for tag in ("origin", "axis")]  # type: ignore[union-attr]
            numbers = [*parts[0], *parts[1], limit.get("lower"), limit.get("upper")]
            found[joint.get("name", "")] = [float(number) for number in numbers]
    return found


def test_the_arm_s_joints_are_the_published_ones(sample: Path) -> None:
    published = joints(ET.parse(sample / "widowx" / "wx250s.urdf").getroot())  # noqa: S314  our own sample
    assert joints(ET.fromstring(arm_urdf())) == published  # noqa: S314
    masses = {
        link.get("name"): float(link.find("inertial/mass").get("value"))  # type: ignore[union-attr, arg-type]
        for link in ET.parse(sample / "widowx" / "wx250s.urdf").getroot().iter("link")  # noqa: S314
    }
    assert {link.name: link.mass for link in ARM}.items() <= masses.items()


def test_no_two_links_of_the_gripper_collide() -> None:
    pairs = ET.fromstring(arm_srdf()).findall("disable_collisions")  # noqa: S314
    # Gripper, bar and two fingers: 4 * 3 / 2 pairs.
    assert len(pairs) == 6


def test_pictures_are_the_same_each_time_and_differ_from_each_other() -> None:
    for make in (photo, texture):
        picture = make(3)
        assert picture.shape == (480, 640, 3)
        assert picture.dtype == np.uint8
        assert np.array_equal(picture, make(3))
        assert not np.array_equal(picture, make(4))
        assert picture.std() > 5
    assert len({colour(index) for index in range(42)}) == 42
