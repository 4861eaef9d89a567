"""Line charts as inline SVG, for pages that must open without a network or a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 460, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 26, 34
_COLOURS = ("#1f6feb", "#d1570b", "#2da44e", "#8250df")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve; points that are not finite are left out."""

    label: str
    """Shown in the legend."""
    x: Sequence[float]
    """Where."""
    y: Sequence[float]
    """How much, as many as `x`."""
    interval: Sequence[tuple[float, float]] | None = None
    """Low and high ends of an error bar at every point; then the points are dots without a line."""


def line_chart(title: str, lines: Sequence[Line], *, y_range: tuple[float, float] | None = None) -> str:
    """An `<svg>` of the curves over simulator steps; `y_range` None fits the data."""
    points = [(x, y) for line in lines for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    if not points:
        return ""
    right = max(x for x, _ in points) or 1.0
    low, high = y_range or _padded(min(y for _, y in points), max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + x / right * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{_LEFT}" y="16" class="title">{html.escape(title)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        _, y = place(0, value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="y">{value:.3g}</text>')
        x, _ = place(share * right, low)
        anchor = "end" if share == 1.0 else "middle"
        label = _steps(share * right)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" text-anchor="{anchor}" class="x">{label}</text>')
    for line, colour in zip(lines, _COLOURS, strict=False):
        dots = [place(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        if line.interval is None:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            continue
        for (x, y), (bottom, top) in zip(dots, line.interval, strict=True):
            low_y, high_y = place(0, bottom)[1], place(0, top)[1]
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low_y:.1f}" y2="{high_y:.1f}" stroke="{colour}"/>'
            )
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    if len(lines) > 1:
        parts += _legend(lines)
    return "".join([*parts, "</svg>"])


def _legend(lines: Sequence[Line]) -> list[str]:
    labels = []
    for row, (line, colour) in enumerate(zip(lines, _COLOURS, strict=False)):
        x, y = _WIDTH - 130, 14 + 13 * row
        labels.append(f'<rect x="{x}" y="{y - 7}" width="9" height="9" fill="{colour}"/>')
        labels.append(f'<text x="{x + 13}" y="{y + 1}" class="key">{html.escape(line.label)}</text>')
    return labels


def _padded(low: float, high: float) -> tuple[float, float]:
    """A range with something above and below; of one value, a range around it."""
    margin = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _steps(number: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
