"""Between host and device; what a GPU would see is in `tests/emulated`."""

from __future__ import annotations

import torch

from vla_policies.transfer import constant, download, upload

CPU = torch.device("cpu")


def test_what_lies_on_the_device_is_not_copied() -> None:
    x = torch.arange(3)
    assert upload(x, CPU) is x
    assert download([x])[0] is x


def test_a_constant_is_made_once() -> None:
    first = constant(((1.0, 2.0), (3.0, 4.0)), torch.float64, CPU)
    assert first.tolist() == [[1, 2], [3, 4]]
    assert first.dtype == torch.float64
    assert constant(((1.0, 2.0), (3.0, 4.0)), torch.float64, CPU) is first
