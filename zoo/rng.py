"""The state of every random generator a run draws from, as JSON values, and the way back.

Python's `random`, NumPy's legacy global generator (Stable-Baselines3 shuffles with it), torch's CPU
generator and, where CUDA is in use, each CUDA device's.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from vla_gym.errors import BadValue


def rng_state() -> dict[str, Any]:
    """The present state; taking it draws nothing."""
    version, words, gauss_next = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss_next": gauss_next},
        "numpy": {
            "name": name,
            "keys": _to_text(np.asarray(keys, dtype="<u4").tobytes()),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached),
        },
        "torch": _to_text(torch.get_rng_state().numpy().tobytes()),
        "cuda": [],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = [_to_text(one.numpy().tobytes()) for one in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Go back to `state`; raises `BadValue` when it was taken with another number of CUDA devices."""
    cuda = state["cuda"]
    if cuda and (not torch.cuda.is_available() or torch.cuda.device_count() != len(cuda)):
        raise BadValue(
            f"saved random state is of {len(cuda)} CUDA device(s), here are "
            f"{torch.cuda.device_count() if torch.cuda.is_available() else 0}"
        )
    python, numpy_ = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss_next"]))
    keys = np.frombuffer(base64.b64decode(numpy_["keys"]), dtype="<u4").astype(np.uint32)
    np.random.set_state(
        (numpy_["name"], keys, numpy_["position"], numpy_["has_gauss"], numpy_["cached_gauss"])
    )
    torch.set_rng_state(_to_tensor(state["torch"]))
    if cuda:
        torch.cuda.set_rng_state_all([_to_tensor(one) for one in cuda])


def _to_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _to_tensor(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())
