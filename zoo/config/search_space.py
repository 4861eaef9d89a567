"""The space that `zoo.optimize` searches: a distribution per setting, in YAML's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, shown
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.run_config import check_settings
from zoo.config.settings import annotations_of, yaml_line
from zoo.yaml_text import parse_yaml, read_yaml_mapping


@dataclass(frozen=True, kw_only=True)
class Span:
    """Numbers from `low` to `high`."""

    low: float
    """Smallest."""
    high: float
    """Largest."""
    log: bool = False
    """Whether every order of magnitude is as likely as another."""


Choice = tuple[Any, ...]
"""One of these values."""
Space = Mapping[str, Span | Choice]
"""Setting -> its distribution."""

_SHARED: Space = {
    "learning_rate": Span(low=1e-5, high=1e-3, log=True),
    "n_epochs": (1, 2, 3, 5),
    "clip_range": (0.1, 0.2, 0.3),
    "max_grad_norm": (0.5, 1.0, 5.0),
}
SPACES: Mapping[str, Space] = {
    "ppo": {
        **_SHARED,
        "gamma": (0.9, 0.95, 0.99, 1.0),
        "gae_lambda": (0.9, 0.95, 1.0),
        "ent_coef": Span(low=1e-5, high=1e-2, log=True),
        "vf_coef": (0.1, 0.5, 1.0),
    },
    "grpo": {**_SHARED, "clip_range_high": (0.2, 0.28, 0.4)},
}
"""Algorithm -> its space without `--space`."""


def drawn_values(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return the settings that a trial's `params` stand for: of a choice they hold the YAML."""
    return {
        name: params[name] if isinstance(kind, Span) else parse_yaml(params[name], f"{name} of a trial")
        for name, kind in space.items()
    }


def described(space: Space) -> dict[str, str]:
    """Return setting -> distribution, as a `--space` file writes it."""
    return {name: yaml_line(asdict(kind) if isinstance(kind, Span) else list(kind)) for name, kind in space.items()}


def read_space(file: Path, algo: str) -> Space:
    """Read a YAML file: `learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}` or `n_epochs: [1, 2, 3]`.

    Raises `BadValue` for a file that cannot be read and for anything that is neither, `UnknownName` for a setting
    that the algorithm does not have.
    """
    what = f"settings of {algo} to what to draw them from"
    entries = read_yaml_mapping(file, what, f"--space {file}")
    if not entries:
        raise BadValue(f"--space {file} must map {what}, and holds none")
    space = {str(name): _kind(str(name), entry, file) for name, entry in entries.items()}
    for name, kind in space.items():
        ends = (kind.low, kind.high) if isinstance(kind, Span) else kind
        for value in ends:
            check_settings(algo, {name: value}, f"--space {file}")
        if name not in annotations_of(ALGORITHMS[algo]):
            raise BadValue(f"--space {file}: '{name}' is no setting of {algo} itself; give it with -params")
    return space


def _kind(name: str, entry: object, file: Path) -> Span | Choice:
    if isinstance(entry, list) and entry:
        return tuple(entry)
    if isinstance(entry, dict) and {"low", "high"} <= entry.keys() <= {"low", "high", "log"}:
        try:
            span = Span(low=float(entry["low"]), high=float(entry["high"]), log=bool(entry.get("log", False)))
        except (TypeError, ValueError, OverflowError):
            span = None
        if span is not None and span.low < span.high and (span.low > 0 or not span.log):
            return span
    raise BadValue(
        f"--space {file}: '{name}' must be a list of values or {{low: ..., high: ..., log: true}} with low < high "
        f"(and low > 0 with log), got {shown(entry)}"
    )
