"""Checkpointing, autocast, the optimiser."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from vla_policies.modules.training import (
    GroupScaledAdamW,
    autocast_type,
    checkpoint_fn,
    in_float32,
    parameter_groups,
    store_activations,
    without_autocast,
)


def test_a_block_runs_again_for_the_same_gradient_only_where_gradients_are_wanted() -> None:
    runs = []

    def block(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.sin().exp()

    gradients = []
    for recompute in (False, True):
        x = torch.tensor([0.3, 2.0], requires_grad=True)
        checkpoint_fn(recompute=recompute)(block, x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(gradients[0], gradients[1])
    assert len(runs) == 3
    with torch.no_grad():
        assert checkpoint_fn(recompute=True) is store_activations


def test_products_keep_their_types_without_autocast() -> None:
    x = torch.ones(2, 2)
    assert autocast_type(x) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_type(x) == (x @ x).dtype == torch.bfloat16
        with without_autocast(x):
            assert autocast_type(x) is None
            assert (x @ x).dtype == torch.float32
    assert autocast_type(torch.ones(2, 2, device="meta")) is None


@pytest.mark.parametrize("autocast", [False, True])
def test_layers_multiply_in_float32_whatever_their_weights_and_autocast(autocast: bool) -> None:
    layers = nn.Sequential(nn.Linear(2, 1), nn.ReLU()).to(torch.bfloat16)
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        layers[0].bias.fill_(0.5)
    # 1.001 + 2 x 1.002 + 0.5; in bfloat16 1.001 is 1.
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = in_float32(layers, torch.tensor([[1.001, 1.002]]))
    assert y.dtype == torch.float32
    assert y.item() == pytest.approx(3.505, abs=1e-6)


def test_a_group_steps_with_its_own_rate_and_lr_reads_the_same() -> None:
    plain, scaled = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [plain]}, {"params": [scaled], "lr_scale": 10.0}]
    optimizer = GroupScaledAdamW(groups, lr=0.5, weight_decay=0.0)
    (plain + scaled).sum().backward()
    for group in optimizer.param_groups:  # as Stable-Baselines3 does before every update
        group["lr"] = 0.01
    optimizer.step()
    # Adam's first step is the rate itself.
    assert torch.allclose(plain, torch.tensor([-0.01]))
    assert torch.allclose(scaled, torch.tensor([-0.1]))
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]


def test_matrices_step_by_torchs_muon_and_the_rest_by_adamw_also_after_a_checkpoint() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 5), nn.Linear(5, 1))
    reference = deepcopy(model)

    def made() -> GroupScaledAdamW:
        groups = parameter_groups(model, model[2].parameters(), 3.0, muon=True)
        assert [(g["name"], [tuple(p.shape) for p in g["params"]]) for g in groups] == [
            ("backbone", [(3, 4), (5,)]),
            ("value_head", [(1, 5), (1,)]),
            ("matrices", [(5, 4)]),
        ]
        return GroupScaledAdamW(groups, lr=0.02, weight_decay=0.01)

    muon = torch.optim.Muon([reference[1].weight], lr=0.02, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    others = [reference[0].weight, reference[1].bias]
    adam = torch.optim.AdamW(
        [{"params": others}, {"params": reference[2].parameters(), "lr": 0.06}], lr=0.02, weight_decay=0.01
    )
    optimizer = made()
    for _ in range(3):
        for one, steppers in ((model, [optimizer]), (reference, [muon, adam])):
            one.zero_grad()
            one(torch.tensor([0, 2])).square().sum().backward()
            for stepper in steppers:
                stepper.step()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        saved = deepcopy(optimizer.state_dict())
        optimizer = made()
        optimizer.load_state_dict(saved)
