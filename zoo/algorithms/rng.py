"""The state of every random generator a run draws from, as JSON values, and the way back.

Python's `random`, NumPy's legacy global generator (Stable-Baselines3 shuffles with it), torch's CPU
generator and, where CUDA is in use, the present CUDA device's.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


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
        "cuda": None,
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _to_text(torch.cuda.get_rng_state().numpy().tobytes())
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Go back to `state`. What it says of a CUDA device is for the present one, where there is one: a run may go on
    on other machines, and a `VLAPolicy`'s decisions depend on none of these (see `vla_policies.actions.noise`)."""
    python, numpy_ = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss_next"]))
    keys = np.frombuffer(base64.b64decode(numpy_["keys"]), dtype="<u4").astype(np.uint32)
    np.random.set_state(
        (numpy_["name"], keys, numpy_["position"], numpy_["has_gauss"], numpy_["cached_gauss"])
    )
    torch.set_rng_state(_to_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_to_tensor(state["cuda"]))


def _to_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _to_tensor(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())
