"""How much main memory this machine lends its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
"""Where control groups of version 2 are mounted, and those of version 1 in a folder each."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""Names the groups that this process is in: a container's, a Slurm job's, a service's."""


def main_memory() -> int:
    """Bytes of main memory: the machine's, or the limit of a container or a job where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for file in _limits() if file.is_file() and (text := file.read_text().strip()).isdigit()]
    return min([machine, *limits])


def _limits() -> Iterator[Path]:
    """Files that may hold a limit, of this process's groups and of all that they lie in."""
    groups = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()] if OWN_GROUPS.is_file() else []
    version_2 = [path for number, _, path in groups if number == "0"]
    version_1 = [path for _, controllers, path in groups if "memory" in controllers.split(",")]
    for root, name, paths in (
        (CGROUPS, "memory.max", version_2),
        (CGROUPS / "memory", "memory.limit_in_bytes", version_1),
    ):
        yield root / name
        for path in paths:
            group = root / path.lstrip("/")
            yield from (folder / name for folder in (group, *group.parents) if folder.is_relative_to(root))
