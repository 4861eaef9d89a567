"""Activation checkpointing: keep a block's inputs, and run the block again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CheckpointFn = Callable[..., Any]
"""`run(function, *args)` returns `function(*args)` and stores all its activations, or only the inputs."""


def store_activations(function: Callable[..., Any], *args: Any) -> Any:
    """Run `function`; autograd stores what it needs."""
    return function(*args)


def store_inputs(function: Callable[..., Any], *args: Any) -> Any:
    """Run `function` now and again in the backward pass: less memory, about a third more time."""
    return checkpoint(function, *args, use_reentrant=False)


def checkpoint_fn(*, recompute: bool) -> CheckpointFn:
    """How blocks run, given the setting `recompute` and whether gradients are on."""
    return store_inputs if recompute and torch.is_grad_enabled() else store_activations
