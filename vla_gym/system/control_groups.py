"""Limits of the control groups that this process is in: a container's, a Slurm job's, a service's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
"""Where control groups of version 2 are mounted, and those of version 1 in a folder each."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""Names the groups that this process is in."""


def memory_limit() -> float:
    """Bytes of memory that all limits leave, infinite without one."""
    texts = [_text(folder / "memory.max") for folder in _groups_2()]
    texts += [_text(folder / "memory.limit_in_bytes") for folder in _groups_1("memory")]
    return min([int(text) for text in texts if text.isdigit()], default=math.inf)


def cpu_limit() -> float:
    """CPU cores' worth of time that all limits leave, infinite without one; "1.5" counts as 1.5 cores."""
    pairs = [_text(folder / "cpu.max").split() for folder in _groups_2()]
    pairs += [[_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")] for folder in _groups_1("cpu")]
    shares = [int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and all(map(str.isdigit, pair))]
    return min(shares, default=math.inf)


def _groups_2() -> Iterator[Path]:
    yield from _folders(MOUNT, [path for number, _, path in _own_groups() if number == "0"])


def _groups_1(controller: str) -> Iterator[Path]:
    paths = [path for _, controllers, path in _own_groups() if controller in controllers.split(",")]
    yield from _folders(MOUNT / controller, paths)


def _folders(root: Path, paths: list[str]) -> Iterator[Path]:
    """The root, which is a container's own group, and the groups that the process lies in."""
    yield root
    for path in paths:
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _own_groups() -> list[list[str]]:
    """(number, controllers, path) of each."""
    return [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()] if OWN_GROUPS.is_file() else []


def _text(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""
