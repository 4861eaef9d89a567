"""Bytes that one of sixteen ranks hands to collectives in a minibatch of four micro-batches, on a group that counts."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.distributed.learner import Learner

RANKS, BLOCKS, WIDTH, MICRO_BATCHES = 16, 4, 256, 4


class Counter(TorchDispatchMode):
    """Counts what goes through process groups."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            written = args[0][0] if isinstance(args[0], list) else args[0]
            row = self.found[func.__name__.split(".")[0].strip("_")]
            row[0], row[1] = row[0] + 1, row[1] + written.nbytes
        return func(*args, **(kwargs or {}))


def count(kind: str, out: Path) -> None:
    """Count one minibatch as `Learner.accumulate` makes it, of two replicas of eight shards for `hsdp`.

    Writes JSON: operation -> [calls, bytes of what it writes].
    """
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    shape, names = ((2, RANKS // 2), ("replicas", "shards")) if kind == "hsdp" else ((RANKS,), None)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*net, net):
        fully_shard(part, mesh=mesh, mp_policy=precision)
    learner = Learner.__new__(Learner)
    learner.sharded, learner._scorer = True, net
    learner.gather_once()
    with Counter() as counter:
        for number in range(MICRO_BATCHES):
            with learner.accumulate(last=number == MICRO_BATCHES - 1):
                net(torch.randn(2, WIDTH)).sum().backward()
    out.write_text(json.dumps(counter.found))
    dist.destroy_process_group()
