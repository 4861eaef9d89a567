import torch

from vla_policies.modules.value_head import ValueHead


def test_first_values_are_near_zero_on_a_normalised_state() -> None:
    torch.manual_seed(0)
    head = ValueHead(4096)
    head.initialise()
    value_B = head(torch.randn(16, 4096))[:, 0]
    assert value_B.shape == (16,)
    assert value_B.abs().max() < 0.05
    assert value_B.std() > 0


def test_keys_and_sizes_are_those_published() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in ValueHead(64, outputs=8).state_dict().items()}
    assert shapes == {
        "mlp.0.weight": (512, 64),
        "mlp.0.bias": (512,),
        "mlp.2.weight": (128, 512),
        "mlp.2.bias": (128,),
        "mlp.4.weight": (8, 128),
    }


def test_half_precision_passes_the_head_by() -> None:
    head = ValueHead(8)
    head.initialise()
    before = head.mlp[0].weight.clone()  # type: ignore[union-attr]
    module = torch.nn.ModuleList([head, torch.nn.Linear(8, 8)]).bfloat16()
    assert module[1].weight.dtype == torch.bfloat16
    assert torch.equal(head.mlp[0].weight, before)  # type: ignore[arg-type]
    assert head(torch.ones(2, 8, dtype=torch.bfloat16)).dtype == torch.float32


def test_autocast_passes_the_head_by() -> None:
    torch.manual_seed(0)
    head = ValueHead(8, outputs=2)
    head.initialise()
    hidden = torch.randn(3, 8)
    plain = head(hidden)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = head(hidden)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, plain)
    # Gathered by FSDP in half precision, weights round, and nothing else does.
    rounded = [parameter.bfloat16() for parameter in head.parameters()]
    with torch.no_grad():
        for parameter, value in zip(head.parameters(), rounded, strict=True):
            parameter.copy_(value)
    wanted = head(hidden)
    for parameter, value in zip(head.parameters(), rounded, strict=True):
        parameter.data = value
    assert torch.equal(head(hidden), wanted)
