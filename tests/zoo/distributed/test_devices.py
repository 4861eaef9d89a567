from __future__ import annotations

import pytest
import torch

from vla_gym.errors import BadValue
from zoo.distributed.devices import check_device


def test_cpu_and_auto_are_always_here() -> None:
    assert check_device("cpu") == torch.device("cpu")
    assert check_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize(
    ("name", "message"), [("gpu", "no device 'gpu'"), ("meta", "not supported"), ("cuda:77", "is not here")]
)
def test_a_device_that_is_not_here_is_named(name: str, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        check_device(name)
