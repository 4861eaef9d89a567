"""Numbers of a running server, as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_PREFIX = "vla_zoo_serve"
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass
class Histogram:
    """Counts of values up to each bound, and their sum."""

    bounds: tuple[float, ...]
    """Upper bounds, rising."""
    counts: list[int] = field(default_factory=list)
    """Values up to each bound, and in all."""
    total: float = 0.0
    """Sum of the values."""

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        for index, bound in enumerate(self.bounds):
            self.counts[index] += value <= bound
        self.counts[-1] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """Return the lines of Prometheus's text format."""
        rows = zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True)
        return [
            f"# TYPE {name} histogram",
            *(f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in rows),
            f"{name}_sum {self.total:g}",
            f"{name}_count {self.counts[-1]}",
        ]


@dataclass
class Metrics:
    """What a server has done since it started."""

    clients: int = 0
    """Connections that are open."""
    connections: int = 0
    """Connections that were opened."""
    answered: int = 0
    """Messages that were answered with actions."""
    refused: Counter[str] = field(default_factory=Counter)
    """Messages and connections that were refused, by reason."""
    batch_size: Histogram = field(default_factory=lambda: Histogram(_BATCHES))
    """Requests decided together."""
    decide_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    """Seconds of the policy for one batch."""
    request_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    """Seconds from a message's arrival to its answer."""

    @property
    def decisions(self) -> int:
        """Requests that the policy decided."""
        return int(self.batch_size.total)

    def text(self) -> str:
        """Return Prometheus's text format."""
        simple = (
            ("clients", "gauge", self.clients),
            ("connections_total", "counter", self.connections),
            ("answers_total", "counter", self.answered),
            ("decisions_total", "counter", self.decisions),
        )
        lines = [line for name, kind, value in simple for line in _simple(name, kind, value)]
        lines.append(f"# TYPE {_PREFIX}_refusals_total counter")
        lines += [f'{_PREFIX}_refusals_total{{reason="{why}"}} {count}' for why, count in sorted(self.refused.items())]
        for name in ("batch_size", "decide_seconds", "request_seconds"):
            lines += getattr(self, name).lines(f"{_PREFIX}_{name}")
        return "\n".join(lines) + "\n"

    def summary(self) -> str:
        """Return one line for the log."""
        batches = self.batch_size.counts[-1]
        refused = ", ".join(f"{count} {why}" for why, count in self.refused.most_common())
        mean = self.decisions / batches if batches else 0.0
        return (
            f"{self.connections} connections, {self.answered} answers, {self.decisions} decisions in {batches} batches "
            f"(mean {mean:.1f}), refused: {refused or 'none'}"
        )


def _simple(name: str, kind: str, value: int) -> list[str]:
    return [f"# TYPE {_PREFIX}_{name} {kind}", f"{_PREFIX}_{name} {value}"]
