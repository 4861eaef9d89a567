"""How much main memory this machine lends its processes."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""A container's limit: control groups of version 2, and of version 1."""


def main_memory() -> int:
    """Bytes of main memory: the machine's, or a container's limit where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for file in CGROUP_LIMITS if file.is_file() and (text := file.read_text().strip()).isdigit()]
    return min([machine, *limits])
