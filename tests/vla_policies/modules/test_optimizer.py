import torch
from torch import nn

from vla_policies.modules.optimizer import GroupScaledAdamW, parameter_groups


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


def test_groups_part_the_value_head_and_leave_frozen_parameters_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(2, 2))
    model[2].requires_grad_(False)
    groups = parameter_groups(model, model[1].parameters(), 3.0)
    assert [group["name"] for group in groups] == ["backbone", "value_head"]
    assert [group["lr_scale"] for group in groups] == [1.0, 3.0]
    assert [len(group["params"]) for group in groups] == [2, 2]


def test_an_empty_group_is_left_out() -> None:
    model = nn.Linear(2, 1)
    assert [group["name"] for group in parameter_groups(model, model.parameters(), 1.0)] == ["value_head"]
