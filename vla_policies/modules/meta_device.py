"""Running a network on tensors without memory, to count what a GPU would hold and compute.

Shapes and types on the "meta" device are real, numbers are not. `OnMeta` sends there what a network builds on a named
device; `fused_attention` stands for the kernels that GPUs run; `Meter` adds up storages, operations and their work.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

META = torch.device("meta")
_ATEN = torch.ops.aten


class OnMeta(TorchFunctionMode):
    """While it is entered, tensors asked for on any device are made on the meta device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is not None:
            given["device"] = META
        return func(*args, **given)


@contextmanager
def fused_attention() -> Iterator[None]:
    """Context manager in which attention runs as on a GPU; the meta device would take the plain implementation."""
    former: Callable[..., Tensor] = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _memory_efficient
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = former


def _memory_efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """No `[L, L]` matrix, and for the backward pass one number per query and head."""
    if enable_gqa and query.shape[1] != key.shape[1]:
        key, value = (_for_heads(x, query.shape[1]) for x in (key, value))
    bias = None
    if attn_mask is not None:
        bias = torch.empty(attn_mask.shape, dtype=query.dtype, device=META)
        bias = bias.expand(*query.shape[:3], key.shape[2])
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    out: Tensor = _ATEN._scaled_dot_product_efficient_attention(
        query, key, value, bias, tracked, dropout_p, is_causal, scale=scale
    )[0]
    return out


def _for_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values of grouped heads for every head; of one head for all no copy is made."""
    return x.expand(-1, heads, -1, -1) if x.shape[1] == 1 else x.repeat_interleave(heads // x.shape[1], dim=1)


class Meter(TorchDispatchMode):
    """Bytes of live storages now and at their peak; operations; floating point work by the width of the type.

    :param held: modules and tensors that are there from the start.
    :param scalar: what an integer read from a tensor without numbers is taken for; a truth value is taken as True.
    """

    def __init__(self, held: Iterable[nn.Module | Tensor] = (), *, scalar: int = 1) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self.operations = 0
        self.flops: dict[int, float] = {}
        """Bytes of a number -> floating point operations on such numbers."""
        self._scalar = scalar
        self._results: dict[Any, tuple[torch.Size, tuple[int, ...], torch.dtype]] = {}
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for one in held:
            tensors = [*one.parameters(), *one.buffers()] if isinstance(one, nn.Module) else [one]
            for tensor in tensors:
                self._see(tensor)

    def start(self) -> int:
        """Begin a new peak; return the bytes that are live."""
        self.peak = self.now
        return self.now

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        if func is _ATEN._local_scalar_dense.default and args[0].is_meta:
            return self._scalar_of(args[0].dtype)
        out = self._run(func, args, kwargs or {})
        for leaf in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            width = next(leaf.element_size() for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
            self.flops[width] = self.flops.get(width, 0.0) + formula(*args, **(kwargs or {}), out_val=out)
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The operation's result; for a layer like one before, in a tenth of the time that shapes take to work out."""
        if not _makes_one_tensor(func):
            return func(*args, **kwargs)
        try:
            key = (func, tuple(map(_described, args)), tuple((name, _described(x)) for name, x in kwargs.items()))
            known = self._results.get(key)
        except TypeError:  # lists of tensors
            return func(*args, **kwargs)
        if known is not None:
            shape, stride, dtype = known
            return torch.empty_strided(shape, stride, dtype=dtype, device=META)
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_meta:
            self._results[key] = (out.shape, out.stride(), out.dtype)
        return out

    def _scalar_of(self, dtype: torch.dtype) -> bool | int | float:
        if dtype == torch.bool:
            return True
        return 1.0 if dtype.is_floating_point else self._scalar

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or not tensor.is_meta:
            return

        def forget(_: object) -> None:
            del self._seen[key]
            self.now -= size

        self._seen[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)


@functools.cache
def _makes_one_tensor(func: Any) -> bool:
    """Whether an operation returns one new tensor, and neither a part of an argument nor a changed one."""
    schema = func._schema
    aliases = [one.alias_info for one in (*schema.arguments, *schema.returns)]
    return len(schema.returns) == 1 and not any(aliases) and not schema.is_mutable


def _described(x: Any) -> Any:
    """All of an argument that the shape of a result depends on; raises `TypeError` for what cannot be a key."""
    if isinstance(x, Tensor):
        return (x.shape, x.stride(), x.dtype, x.device.type)
    if isinstance(x, list):
        x = tuple(x)
        if any(isinstance(part, Tensor) for part in x):
            raise TypeError("a list of tensors")
    hash(x)
    return (type(x), x)
