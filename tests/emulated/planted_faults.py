"""Faults of code that has only run on a CPU, each of which the emulated device must find."""

from __future__ import annotations

from collections import Counter

import torch
from emulated_device import DEVICE, EmulatedTensor, watch
from torch import Tensor
from torch.nn import functional

from vla_policies.devices import upload


def numbers() -> Tensor:
    """2 x 3 numbers on the device."""
    return upload(torch.arange(6.0).view(2, 3), torch.device(DEVICE))


def mixed_devices() -> Tensor:
    return numbers() + torch.ones(3)


def a_mask_left_on_the_cpu() -> Tensor:
    return torch.where(torch.ones(2, 3, dtype=torch.bool), numbers(), 0.0)


def a_weight_left_on_the_cpu() -> Tensor:
    return functional.linear(numbers(), torch.ones(4, 3))


def a_gather_by_an_index_of_the_cpu() -> Tensor:
    return numbers().gather(1, torch.zeros(2, 1, dtype=torch.int64))


def an_attention_mask_left_on_the_cpu() -> Tensor:
    query = torch.ones(1, 1, 2, 4, device=DEVICE)
    return functional.scaled_dot_product_attention(query, query, query, torch.ones(2, 2, dtype=torch.bool))


def a_table_indexed_from_the_device() -> Tensor:
    return torch.arange(6.0)[torch.zeros(2, dtype=torch.int64, device=DEVICE)]


def numpy_of_a_device_tensor() -> object:
    return numbers().numpy()


def a_generator_of_the_cpu() -> Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(0), device=DEVICE)


def a_hidden_item() -> object:
    return numbers().sum().item()


def a_hidden_branch() -> object:
    return 1 if (numbers() > 0).all() else 0


def a_hidden_list() -> object:
    return numbers().tolist()


def a_hidden_download() -> object:
    return numbers().cpu()


def a_boolean_index() -> Tensor:
    x = numbers()
    return x[x > 2]


def a_nonzero() -> Tensor:
    return numbers().nonzero()


def an_upload_in_a_loop() -> Tensor:
    x = numbers()
    for _ in range(3):
        x = x + torch.ones(3).to(DEVICE)
    return x


def an_index_of_the_cpu() -> Tensor:
    return numbers()[torch.tensor([0])]


def an_upload_of_pinned_numbers() -> Tensor:
    return numbers() + upload(torch.ones(3), torch.device(DEVICE))


REFUSED = (
    mixed_devices, a_mask_left_on_the_cpu, a_weight_left_on_the_cpu, a_gather_by_an_index_of_the_cpu,
    an_attention_mask_left_on_the_cpu, a_table_indexed_from_the_device, numpy_of_a_device_tensor,
    a_generator_of_the_cpu,
)  # fmt: skip
WAITED_FOR = (a_hidden_item, a_hidden_branch, a_hidden_list, a_hidden_download, a_boolean_index, a_nonzero)
UPLOADED = {an_upload_in_a_loop: 3, an_index_of_the_cpu: 1, an_upload_of_pinned_numbers: 1}


def refusal(name: str) -> str:
    """The message with which the device refuses a fault; "" where it does not."""
    try:
        globals()[name]()
    except (RuntimeError, TypeError) as error:
        return str(error)
    return ""


def found(name: str) -> tuple[Counter[str], int]:
    """Waits of the host for the device by place, and the number of uploads; both after those of the numbers."""
    with watch() as own:
        numbers()
    with watch() as counts:
        globals()[name]()
    return counts.waits - own.waits, counts.uploads.total() - own.uploads.total()


def kernels() -> dict[str, int]:
    """Launches of a product, a norm, plain attention and attention with grouped heads and a mask."""
    x, head = numbers(), torch.ones(1, 2, 3, 4, device=DEVICE)
    mask = torch.ones(3, 3, dtype=torch.bool, device=DEVICE)
    attention = functional.scaled_dot_product_attention
    with watch() as counts:
        assert isinstance(x @ x.t(), EmulatedTensor)
        functional.rms_norm(x, (3,))
        attention(head, head, head, mask)
        attention(head, head[:, :1], head[:, :1], mask, enable_gqa=True)
        x.t().unflatten(0, (3, 1)).detach()
    return dict(counts.launches)
