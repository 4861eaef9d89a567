"""The machine that a run trains on, in words."""

from __future__ import annotations

import platform
from pathlib import Path

from vla_gym.system.limits import main_memory, num_cores

_CPU_INFO = Path("/proc/cpuinfo")


def describe_machine(accelerator: str | None = None) -> str:
    """Return cores, processor, main memory and the `accelerator`'s name: "2 cores of AMD EPYC 9B14, 23.5 GiB"."""
    parts = [f"{num_cores()} cores of {_processor()}", f"{main_memory() / 2**30:.1f} GiB"]
    return ", ".join([*parts, accelerator] if accelerator else parts)


def _processor() -> str:
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines() if _CPU_INFO.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
