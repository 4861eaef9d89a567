"""The optimiser's state goes to main memory and comes back as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zoo.distributed.optimizer_offload import move_state, offloaded_state


def stepped(device: str) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.ones(1, 64, device=device)).sum().backward()
    optimizer.step()
    return net, optimizer


def test_only_what_is_elsewhere_moves_and_its_home_is_told():
    _, optimizer = stepped("cpu")
    assert move_state(optimizer, torch.device("cpu")) == []
    moved = move_state(optimizer, torch.device("meta"))
    # Weight and bias: two moments each, and the step count that Adam keeps on the CPU.
    assert sorted(name for _, name, _ in moved) == sorted(["exp_avg", "exp_avg_sq", "step"] * 2)
    assert {home for _, _, home in moved} == {torch.device("cpu")}
    assert all(values[name].is_meta for values, name, _ in moved)


def test_an_update_after_a_rest_is_the_same():
    (net, optimizer), (other, unrested) = stepped("cpu"), stepped("cpu")
    with offloaded_state(optimizer):
        assert all(parameter.grad is None for parameter in net.parameters())
    for network, its in ((net, optimizer), (other, unrested)):
        its.zero_grad()
        network(torch.ones(1, 64)).square().sum().backward()
        its.step()
    assert torch.equal(net.weight, other.weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_has_the_memory_while_it_rests():
    net, optimizer = stepped("cuda")
    before = {id(value): value.clone() for values in optimizer.state.values() for value in values.values()}
    held = torch.cuda.memory_allocated()
    with offloaded_state(optimizer):
        # Gradients and two moments of 64 x 64 + 64 float32 numbers.
        assert held - torch.cuda.memory_allocated() >= 3 * 4 * (64 * 64 + 64)
    assert len(before) == sum(len(values) for values in optimizer.state.values())
    assert all(
        values["exp_avg"].device == weight.device for weight, values in optimizer.state.items() if weight.is_cuda
    )
    assert next(net.parameters()).is_cuda
