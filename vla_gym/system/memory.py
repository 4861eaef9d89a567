"""How much main memory this machine lends its processes."""

from __future__ import annotations

import os

from vla_gym.system.control_groups import memory_limit


def main_memory() -> int:
    """Bytes of main memory: the machine's, or the limit of a container or a job where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(machine, memory_limit()))
