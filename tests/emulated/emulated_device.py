"""A pretended GPU for machines without one: real numbers, a device of its own, CUDA's rules about devices.

A tensor on it wraps one on the CPU, says that its device is "emulated:0", and refuses what CUDA refuses: operands of
two devices (but 0-dim CPU tensors and CPU indices), `.numpy()`, a generator of the CPU. `watch()` counts what costs a
GPU time: kernel launches, waits of the host, and copies to the device, with their places in this project.

It is one per process and changes how modules move between devices, so tests run it in a process of its own.
Kernels that CUDA has whole and the CPU puts together (attention, RMS norm) count as one launch each way.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, get_alias_info
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _DummyDeviceGuard, _DummyPrivateUse1Hook

DEVICE = "emulated"
PACKAGES = ("/vla_gym/", "/vla_policies/", "/zoo/", "/planted_faults.py")
PINNED = "vla_policies/devices.py"
"""The module that uploads from pinned memory."""
WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive", "is_nonzero",
    "equal", "bincount",
}  # fmt: skip
"""Operations whose result's value or shape the host needs."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"copy_", "_to_copy", "copy"}
NO_KERNEL = {
    "detach", "_unsafe_view", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "_reshape_alias", "is_same_size", "device",
}  # fmt: skip


@dataclass
class Counts:
    """Costs of a stretch of work; places are `file:line` of this project, the innermost two."""

    launches: Counter[str] = field(default_factory=Counter)
    """Kernels by operation."""
    waits: Counter[str] = field(default_factory=Counter)
    """Waits of the host for the device, by operation and place."""
    uploads: Counter[str] = field(default_factory=Counter)
    """Copies from the host, by operation and place."""

    def summary(self) -> dict[str, int]:
        """Totals by name."""
        names = ("launches", "waits", "uploads")
        return {name: getattr(self, name).total() for name in names} | {"casts": self.launches["_to_copy"]}


_watching: list[Counts] = []


Entry = tuple[str, Callable[..., Any], Sequence[Any], dict[str, Any], Any]
"""One operation on the CPU's tensors: its name, itself, its arguments, and its results."""
_tapes: list[list[Entry]] = []


@contextmanager
def taped() -> Iterator[list[Entry]]:
    """Context manager that records operations, which `play` runs again on the same memory, as a CUDA graph does."""
    _tapes.append([])
    try:
        yield _tapes[-1]
    finally:
        _tapes.pop()


def play(tape: Sequence[Entry]) -> None:
    """Run the operations of a tape again, without the Python around them."""
    with torch._C._DisableTorchDispatch():
        for _, func, args, kwargs, results in tape:
            found = tree_flatten(func(*args, **kwargs))[0]
            for place, x in zip(tree_flatten(results)[0], found, strict=True):
                if isinstance(x, Tensor) and x.data_ptr() != place.data_ptr():
                    place.copy_(x)


def _tape(name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> None:
    for tape in _tapes:
        tape.append((name, func, args, kwargs, results))


@contextmanager
def watch() -> Iterator[Counts]:
    """Context manager that counts."""
    _watching.append(Counts())
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


def _count(kind: str, name: str, *, place: bool = True) -> None:
    for counts in _watching:
        getattr(counts, kind)[f"{name} {_place()}" if place else name] += 1


def _place() -> str:
    """Where this project is, `file:line`, the innermost two."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < 2:
        file = frame.f_code.co_filename
        for package in PACKAGES:
            if package in file and "site-packages" not in file:
                found.append(f"{file[file.rindex(package) + 1 :]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)


class EmulatedTensor(Tensor):
    """A tensor on the pretended GPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> EmulatedTensor:
        out: EmulatedTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=f"{DEVICE}:0", requires_grad=False,
        )  # fmt: skip
        out.inner = inner
        return out

    def __repr__(self, **_: Any) -> str:
        return f"EmulatedTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            out: Tensor = EmulatedTensor(self.inner.detach().clone())
            memo[id(self)] = nn.Parameter(out, self.requires_grad) if isinstance(self, nn.Parameter) else out
        return memo[id(self)]

    def __getitem__(self, index: Any) -> Tensor:
        # A list becomes a tensor below the place where operations are seen.
        return super().__getitem__(torch.tensor(index) if isinstance(index, list) else index)

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        _count("waits", "tolist")
        return self.inner.tolist()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees operations without a tensor of the device among their operands: factories and uploads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _rms_norm(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    if not isinstance(args[0], EmulatedTensor):
        return func(*args, **kwargs)
    return _as_one_kernel("rms_norm", func, args, kwargs)


def _attention(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """CUDA's attention. Grouped heads have no fused kernel with a mask or in float32: nine launches, as the CPU's
    `_scaled_dot_product_attention_math` (two scalings, two repeats, two products, mask, softmax, copy)."""
    query, mask = args[0], kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    if not isinstance(query, EmulatedTensor):
        return func(*args, **kwargs)
    fused = not kwargs.get("enable_gqa") or (mask is None and query.dtype != torch.float32)
    if fused or query.shape[1] == args[1].shape[1]:
        return _as_one_kernel("attention", func, args, kwargs)
    for _ in range(8):
        _count("launches", "math_attention", place=False)
    return _as_one_kernel("math_attention", func, args, kwargs)


def _as_one_kernel(name: str, func: Callable[..., Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    flat, spec = tree_flatten((tuple(args), kwargs))
    _check_devices(func, name, flat)
    out: Tensor = _OneKernel.apply(name, func, spec, *flat)
    return out


class _OneKernel(torch.autograd.Function):
    """A function of CPU tensors as one launch forward and one backward, which computes it again."""

    @staticmethod
    def forward(ctx: Any, name: str, func: Callable[..., Tensor], spec: Any, *flat: Any) -> Tensor:
        _count("launches", name, place=False)
        ctx.name, ctx.func, ctx.spec = name, func, spec
        ctx.others = [None if isinstance(x, Tensor) else x for x in flat]
        ctx.places = [place for place, x in enumerate(flat) if isinstance(x, Tensor)]
        ctx.save_for_backward(*(flat[place] for place in ctx.places))
        with torch._C._DisableTorchDispatch():
            args, kwargs = tree_unflatten([_plain(x) for x in flat], spec)
            out = func(*args, **kwargs)
            _tape(name, func, args, kwargs, out)
            return EmulatedTensor(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        _count("launches", f"{ctx.name}_backward", place=False)
        flat = list(ctx.others)
        for place, x in zip(ctx.places, ctx.saved_tensors, strict=True):
            flat[place] = _plain(x).detach()
        wanted = [place for place in ctx.places if ctx.needs_input_grad[3 + place]]
        with torch._C._DisableTorchDispatch(), torch.enable_grad():
            for place in wanted:
                flat[place].requires_grad_(True)
            args, kwargs = tree_unflatten(flat, ctx.spec)
            found = torch.autograd.grad(ctx.func(*args, **kwargs), [flat[place] for place in wanted], _plain(grads[0]))
        out: list[Tensor | None] = [None] * len(flat)
        for place, grad in zip(wanted, found, strict=True):
            out[place] = EmulatedTensor(grad)
        return None, None, None, *out


def _plain(x: Any) -> Any:
    return x.inner if isinstance(x, EmulatedTensor) else x


def _check_devices(func: Any, name: str, flat: Sequence[Any]) -> None:
    here = [x for x in flat if isinstance(x, EmulatedTensor)]
    host = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, EmulatedTensor)]
    if not here or not host or name in COPIES or all(x.dim() == 0 for x in host):
        return
    if name in INDEXING and isinstance(flat[0], EmulatedTensor):
        _count_upload(f"{name} by an index of the CPU")
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE}:0 and cpu! ({func})"
    )


def _count_copy(name: str, args: Sequence[Any], *, to_here: bool, to_host: bool) -> None:
    source = args[1] if name == "copy_" else args[0]
    from_here = isinstance(source, EmulatedTensor)
    arrives_here = isinstance(args[0], EmulatedTensor) if name == "copy_" else to_here or (from_here and not to_host)
    if from_here and not arrives_here:
        _count("waits", f"{name} to the CPU")
    elif arrives_here and not from_here and isinstance(source, Tensor) and source.dim() > 0:
        _count_upload(name)


def _count_upload(name: str) -> None:
    """An upload. The host waits for its end, except where `vla_policies.devices` uploads from pinned memory."""
    _count("uploads", name)
    if not _place().startswith(PINNED):
        _count("waits", f"{name} of what is not pinned")


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation: checked, counted, computed on the CPU's tensors."""
    name = func._schema.name.split("::")[1]
    flat, spec = tree_flatten((args, kwargs))
    device = kwargs.get("device")
    to_here = device is not None and torch.device(device).type == DEVICE
    to_host = device is not None and torch.device(device).type == "cpu"
    any_here = any(isinstance(x, EmulatedTensor) for x in flat)
    if not any_here and not to_here:
        return func(*args, **kwargs)
    _check_devices(func, name, flat)
    if kwargs.get("generator") is not None and kwargs["generator"].device.type == "cpu":
        raise RuntimeError(f"Expected a '{DEVICE}' device type for generator but found 'cpu'")
    if name in COPIES:
        _count_copy(name, args, to_here=to_here, to_host=to_host)
    elif name in WAITS:
        _count("waits", name)
    elif name in INDEXING and any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        _count("waits", f"{name} by a mask")
    if not (func.is_view or name in NO_KERNEL or name in WAITS):
        _count("launches", name, place=False)
    plain_args, plain_kwargs = tree_unflatten([_plain(x) for x in flat], spec)
    if to_here:
        plain_kwargs["device"] = torch.device("cpu")
    plain_kwargs.pop("pin_memory", None)
    out = func(*plain_args, **plain_kwargs)
    _tape(name, func, plain_args, plain_kwargs, out)
    return _wrapped(func, name, out, args, kwargs, here=to_here or (any_here and not to_host))


def _wrapped(func: Any, name: str, out: Any, args: Any, kwargs: dict[str, Any], *, here: bool) -> Any:
    """Results as tensors of the device; of operations in place, the tensors that were written."""
    if name == "copy_":
        return args[0]
    schema = get_alias_info(func)
    written = [i for i, argument in enumerate(schema.args) if argument.is_write]
    if written and any(result.is_write for result in schema.outs):
        names = [argument.name for argument in func._schema.arguments]
        targets = [args[i] if i < len(args) else kwargs[names[i]] for i in written]
        if any(isinstance(x, EmulatedTensor) and x.shape != x.inner.shape for x in targets):
            return EmulatedTensor(targets[0].inner)
        return targets[0] if len(targets) == 1 else tuple(targets)
    if written and out is None:
        return None
    return tree_map(lambda x: EmulatedTensor(x) if here and isinstance(x, Tensor) else x, out)


class _Backend:
    """`torch.emulated`."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None: ...

    @staticmethod
    def get_rng_state(device: object = None) -> Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    @staticmethod
    def set_rng_state(state: Tensor, device: object = None) -> None: ...

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]


_kept: list[object] = []


def install() -> None:
    """Make the device known to torch, for the rest of the process."""
    torch.utils.rename_privateuse1_backend(DEVICE)
    torch.utils.generate_methods_for_privateuse1_backend()
    torch._register_device_module(DEVICE, _Backend)
    hook, guard = _DummyPrivateUse1Hook(), _DummyDeviceGuard()
    torch._C._acc.register_python_privateuseone_hook(hook)
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    torch.__future__.set_swap_module_params_on_conversion(True)
    made = torch.tensor

    def tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        # Its copy to the device happens below the place where operations are seen.
        out = made(data, *args, **kwargs)
        return out if device is None else out.to(device)

    torch.tensor = tensor  # type: ignore[assignment]
    functional.scaled_dot_product_attention = partial(_attention, functional.scaled_dot_product_attention)
    functional.rms_norm = partial(_rms_norm, functional.rms_norm)
    _let_the_hub_library_read_memory()
    mode = _Mode()
    mode.__enter__()
    _kept.extend([hook, guard, mode])


def _let_the_hub_library_read_memory() -> None:
    """Its writer of weights compares the addresses of tensors, which these have on the CPU."""
    from huggingface_hub.serialization import _torch as hub

    pointer, size = hub.storage_ptr, hub.get_torch_storage_size
    hub.storage_ptr = lambda x: pointer(x.inner if isinstance(x, EmulatedTensor) else x)
    hub.get_torch_storage_size = lambda x: size(x.inner if isinstance(x, EmulatedTensor) else x)
