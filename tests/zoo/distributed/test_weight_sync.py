"""Messages and weights between processes: whole, in order, with or without a GPU's backend beside."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.zoo.forks import as_ranks
from zoo.distributed import process_group as processes
from zoo.distributed.weight_sync import Channel, WeightSync


def talk(rank: int, channel: Channel) -> None:
    """Rank 0 sends three messages to rank 1, of every type that a rollout has, and hears of it."""
    if rank == 0:
        for number in range(3):
            tensors = {"a": torch.arange(3) + 10 * number, "b": torch.zeros(0, 2), "scalar": torch.tensor(0.5)}
            tensors |= {"strided": torch.arange(6).reshape(2, 3).T, "flags": torch.tensor([[True], [False]])}
            tensors |= {str(dtype): torch.ones(2, dtype=dtype) for dtype in (torch.uint8, torch.bfloat16)}
            channel.send(1, {"number": number, "words": "höher"}, tensors)
        assert channel.receive(1) == (["done"], {})
    elif rank == 1:
        for number in range(3):
            metadata, tensors = channel.receive(0)
            assert metadata == {"number": number, "words": "höher"}, metadata
            assert tensors["a"].tolist() == [10 * number + place for place in range(3)], tensors
            assert tensors["b"].shape == (0, 2)
            assert (tensors["scalar"].shape, tensors["scalar"]) == ((), 0.5)
            assert tensors["strided"].tolist() == [[0, 3], [1, 4], [2, 5]]
            assert tensors["flags"].tolist() == [[True], [False]]
            assert all(tensors[str(dtype)].dtype == dtype for dtype in (torch.uint8, torch.bfloat16))
        channel.send(0, ["done"])
    channel.wait()


def sync() -> None:
    """Of one of three ranks; rank 1 is a machine with GPUs, whose NCCL is played by a backend that sends nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers it

    rank = int(os.environ["RANK"])
    if rank == 1:
        processes.backends = lambda device_type: "cpu:gloo,cuda:fake"
    group, _ = processes.join("cpu")
    assert torch.equal(group.all_gather(torch.full((1, 1), rank)), torch.tensor([[0, 1, 2]]))
    talk(rank, Channel(group.host_group))
    members = group.subgroup([0, 1])
    if members is not None:
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1).bfloat16(), nn.Linear(1, 1))
        net[2].weight.requires_grad_(False)
        kept = net[0].weight
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(1.0 + rank)
        for device_group in (members.host_group, members.gradient_group):
            sync = WeightSync(net, 1, device_group, torch.device("cpu"))
            for _ in range(2):
                if rank == 1:
                    # 6 + 3 + 1 float32 and 3 + 1 bfloat16.
                    assert sync.send() == 4 * 10 + 2 * 4
                    with torch.no_grad():
                        for parameter in net.parameters():
                            parameter += 1
                else:
                    sync.receive()
            sync.wait()
            print(rank, [float(parameter.flatten()[0]) for parameter in net.parameters()], kept is net[0].weight)  # noqa: T201
    group.any(False)
    dist.destroy_process_group()


@pytest.mark.processes
def test_versions_arrive_in_order_whatever_else_a_rank_has() -> None:
    said = as_ranks(3, sync)
    # Rank 1 began with 2 everywhere and added 1 after each of two versions: 2 and 3 were sent, then 4 and 5. The last
    # layer's weight is frozen.
    assert "0 [3.0, 3.0, 3.0, 3.0, 1.0, 3.0] True\n0 [5.0, 5.0, 5.0, 5.0, 1.0, 5.0] True" in said
