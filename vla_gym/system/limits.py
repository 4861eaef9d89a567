"""Cores and memory that this process may use: the machine's, or less in a container or a Slurm job."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from vla_gym.errors import BadValue

MOUNT = Path("/sys/fs/cgroup")
"""Where control groups are mounted; those of version 1 in a folder per controller."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""Lists the groups that this process is in, as number:controllers:path."""


def main_memory() -> int:
    """Return bytes of main memory: the machine's, or the limit of a container or a job where that is less."""
    texts = [_text(folder / name) for folder in _groups() for name in ("memory.max", "memory.limit_in_bytes")]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(text) for text in texts if text.isdigit())])


WORKER_GB = "VLA_ZOO_WORKER_GB"
"""Environment variable: memory of a worker, in GB, from which scenes that no slot plays are dropped."""


def worker_memory(num_workers: int = 1) -> float:
    """Return bytes that a worker may take before it drops scenes: by default workers share half of the main memory."""
    share = main_memory() / 2 / num_workers / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    text = os.environ.get(WORKER_GB, str(share / 1e9))
    try:
        return float(text) * 1e9
    except ValueError:
        raise BadValue(f"{WORKER_GB} must be a number of gigabytes, such as 4, got {text!r}") from None


def resident_memory() -> int:
    """Return bytes of main memory that this process holds; 0 where the system does not tell."""
    fields = _text(Path("/proc/self/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def num_cores() -> int:
    """Return the CPU cores of this process: an even share for each that a launcher started on this machine.

    A container's limit counts, rounded up: it sees all cores of its machine.
    """
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = math.ceil(min(seen, _cpu_limit()))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def let_waiting_threads_sleep() -> None:
    """Make OpenMP's threads sleep instead of spin where they wait; call before torch is imported.

    OpenMP's default spins: where another program has one of the cores, every parallel loop then waits for a time slice.
    Training Toy-Reach on two cores that were free made 4,240 simulator steps per second either way; with two other busy
    processes 1,505 sleeping, fewer than 210 spinning. The numbers computed are the same. OMP_WAIT_POLICY stands.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _cpu_limit() -> float:
    shares = []
    for folder in _groups():
        quotas = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        for quota, period in (_text(folder / "cpu.max").split() or ("", ""), quotas):
            if quota.isdigit() and period.isdigit():
                shares.append(int(quota) / int(period))
    return min(shares, default=math.inf)


def _groups() -> Iterator[Path]:
    yield MOUNT
    for line in _text(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        for root in (MOUNT / controller for controller in controllers.split(",")):
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _text(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""
