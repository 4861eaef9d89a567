"""Activation checkpointing: keep a block's inputs, and run it again on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Remember = Callable[..., Any]
"""`remember(function, *args)` is `function(*args)`, with all activations kept or only the inputs."""


def keep_everything(function: Callable[..., Any], *args: Any) -> Any:
    """Run it; autograd keeps what it needs."""
    return function(*args)


def keep_inputs(function: Callable[..., Any], *args: Any) -> Any:
    """Run it now and again in the backward pass: memory for time, about a third more of it."""
    return checkpoint(function, *args, use_reentrant=False)


def remember_for(*, recompute: bool) -> Remember:
    """The way to run a block, given the setting and whether gradients are on at all."""
    return keep_inputs if recompute and torch.is_grad_enabled() else keep_everything
