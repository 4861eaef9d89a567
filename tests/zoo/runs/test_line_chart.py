from __future__ import annotations

import math
from xml.etree import ElementTree

from zoo.runs.line_chart import Line, line_chart


def test_points_land_where_the_axes_say() -> None:
    svg = line_chart("a < b", [Line(label="one", x=[0, 50, 100], y=[0.0, 0.5, 1.0])], y_range=(0.0, 1.0))
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own text
    (curve,) = root.iter("polyline")
    # The plane runs from (56, 186) to (448, 26).
    assert curve.get("points") == "56.0,186.0 252.0,106.0 448.0,26.0"
    assert root.get("aria-label") == "a < b"


def test_error_bars_end_at_their_interval() -> None:
    dots = Line(label="evaluation", x=[100], y=[0.5], interval=[(0.25, 1.0)])
    root = ElementTree.fromstring(line_chart("t", [dots], y_range=(0.0, 1.0)))  # noqa: S314
    (bar,) = [one for one in root.iter("line") if one.get("class") is None]
    assert (bar.get("y1"), bar.get("y2")) == ("146.0", "26.0")


def test_a_chart_without_finite_numbers_is_no_chart() -> None:
    assert line_chart("t", [Line(label="one", x=[1.0], y=[math.nan])]) == ""


def test_a_constant_has_room_above_and_below() -> None:
    svg = line_chart("t", [Line(label="one", x=[0, 2000], y=[5.0, 5.0])])
    assert ">4.5<" in svg
    assert ">5.5<" in svg
    assert ">2 k<" in svg
