"""Which torch device a run uses."""

from __future__ import annotations

import torch

from vla_gym.errors import BadValue


def check_device(name: str) -> torch.device:
    """ "auto" takes CUDA where there is one; raises `BadValue` for a device that is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadValue(f"no device '{name}'. Allowed: auto, cpu, cuda, cuda:<index>") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0 or (device.index or 0) >= count:
            raise BadValue(
                f"device '{name}' is not here: torch sees {count} CUDA devices. Use --device auto or cpu"
            )
    elif device.type != "cpu":
        raise BadValue(f"device '{name}' is not supported. Allowed: auto, cpu, cuda, cuda:<index>")
    return device
