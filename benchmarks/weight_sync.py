"""Time of sending trained weights to ranks that decide: `python -m benchmarks.weight_sync`.

Starts processes of this machine's CPUs, which meet over gloo on loopback. The first sends as many float32 numbers as
LoRA 32 trains of OpenVLA-OFT-7B (444 MB) to the others; printed are the seconds until all have taken them over. Beside
that, the same over `torch.distributed.broadcast` alone, which nothing can undercut.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from zoo.distributed.process_group import join
from zoo.distributed.weight_sync import WeightSync

ADAPTER = 32 * 4096
"""Numbers of one matrix of LoRA 32 in a layer 4,096 wide."""


def adapters(count: int) -> nn.Module:
    """A module of `count` trained numbers in matrices of adapters."""
    sizes = [ADAPTER] * (count // ADAPTER) + [count % ADAPTER]
    return nn.ParameterList(nn.Parameter(torch.randn(size)) for size in sizes if size)


def measure(count: int, versions: int) -> None:
    """Send or receive, as one rank of the run; the first prints the medians."""
    torch.set_num_threads(1)
    group, device = join("cpu")
    module = adapters(count)
    sync = WeightSync(module, 0, group.host_group, device)
    flat = torch.empty(count)

    def exchange() -> None:
        if group.is_first:
            sync.send()
            sync.wait()
        else:
            sync.receive()

    took: dict[str, list[float]] = {"weight sync": [], "broadcast alone": []}
    for _ in range(versions):
        for name, action in (
            ("weight sync", exchange),
            ("broadcast alone", lambda: dist.broadcast(flat, 0, group=group.host_group)),
        ):
            group.any(flag=False)
            start = time.perf_counter()
            action()
            group.any(flag=False)
            took[name].append(time.perf_counter() - start)
    if group.is_first:
        for name, seconds in took.items():
            print(f"  {name:<16}{4 * count / 1e6:6.0f} MB to {group.size - 1}: {statistics.median(seconds):6.2f} s")
    dist.destroy_process_group()


def main() -> None:
    """Start the processes and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=111_000_000)
    parser.add_argument("--versions", type=int, default=3, help="times to send; the median is printed")
    args = parser.parse_args()
    if "RANK" in os.environ:
        measure(args.parameters, args.versions)
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(args.processes)}
    command = [sys.executable, "-m", "benchmarks.weight_sync", *sys.argv[1:]]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **meeting, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(args.processes)
    ]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit("a process failed; its own message says why")


if __name__ == "__main__":
    main()
