"""Count the GPU memory of a policy on the meta device, where tensors have shapes and types but no memory.

The network is built from its family's own description, and acts, scores, goes backward and steps there as on a GPU; no
family has a formula of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vla_gym.observation import encode_instruction
from vla_policies.actions.sampling import Sampling
from vla_policies.conventions import Conventions
from vla_policies.devices import built_for
from vla_policies.loading import fresh_backbone
from vla_policies.modules.training import GroupScaledAdamW, parameter_groups, units
from vla_policies.registry import family_class
from vla_policies.steering import ChunkCritic, ReturnModel, critic_config
from vla_policies.types import PolicyInputs

META = torch.device("meta")
SENTENCE = "pick up the black bowl between the plate and the ramekin and place it on the plate"
"""LIBERO-Spatial's first task, one of its long ones."""
LONGEST_TEXT = 40
"""Tokens of a long prompt; LIBERO's have 20 to 40. Byte tokens, which stand in for a missing tokenizer, are more."""
_ATEN = torch.ops.aten


class Footprint:
    """Bytes that a policy takes of a GPU. Counts are cached; the first of a 7B policy takes seconds.

    :param options: the user's `backbone_kwargs`; without a size those of the family's published network.
    """

    frozen: int
    """Weights that do not train, and buffers."""
    trained: int
    """Weights that train. Their gradients take as much, Adam's moments twice as much."""
    num_trained: int
    """Parameters that train."""

    def __init__(
        self, family: str, conventions: Conventions, options: Mapping[str, Any], recompute: bool | None = None
    ) -> None:
        complete = family_class(family).planned_options(options)
        with OnMeta(), META, built_for("cuda"):
            self.backbone = fresh_backbone(family, conventions, complete)
            if recompute is not None:
                self.backbone.set_recompute(recompute)
            groups = parameter_groups(self.backbone, self.backbone.value_parameters(), 1.0)
            # GPUs update all tensors at once, which holds a temporary result of each.
            self._optimizer = GroupScaledAdamW(groups, lr=1e-5, foreach=True)
        self._trained = [p for p in self.backbone.parameters() if p.requires_grad]
        self.trained = _bytes(self._trained)
        self.frozen = _bytes([*self.backbone.parameters(), *self.backbone.buffers()]) - self.trained
        self.num_trained = sum(p.numel() for p in self._trained)

    def block_sizes(self) -> list[int]:
        """Parameters that train in each unit that FSDP2 gathers, without the rest of the network."""
        return [sum(p.numel() for p in unit.parameters() if p.requires_grad) for unit in units(self.backbone)[:-1]]

    def num_judging(self, critics: int) -> int:
        """Parameters of so many critics (QC), without any of a value function (RECAP); their passes are not counted."""
        with OnMeta(), META:
            config = critic_config(self.backbone.conventions, self.backbone, critics or 1)
            network = ChunkCritic(config) if critics else ReturnModel(config)
        return sum(p.numel() for p in network.parameters())

    @cached_property
    def features(self) -> int:
        """Bytes of what is kept of an observation by default; 0 where nothing is."""
        if self.backbone.kept is not None:
            return 0
        self.backbone.keep_features()
        kept, self.backbone.kept = self.backbone.kept, None
        if kept is None:
            return 0
        inputs, length = self._inputs(1)
        with torch.no_grad(), fused_attention(), Meter(scalar=length):
            return _bytes(list(self.backbone.features(_copy(inputs))))

    @lru_cache(maxsize=64)  # noqa: B019 - lives as long as the process
    def act(self, batch: int) -> int:
        """Peak bytes of deciding for `batch` observations, beyond the weights."""
        inputs, length = self._inputs(batch)
        with torch.no_grad(), fused_attention(), Meter((self.backbone,), scalar=length) as meter:
            self.backbone.act(_copy(inputs), Sampling(), deterministic=False)
        return meter.peak - meter.held

    @lru_cache(maxsize=64)  # noqa: B019
    def update(self, batch: int, *, accumulates: bool = False) -> int:
        """Peak bytes of scoring `batch` decisions and going backward, beyond weights and gradients.

        :param accumulates: whether gradients of an earlier micro-batch exist from the start.
        """
        inputs, length = self._inputs(batch)
        record = {name: _repeated(x, batch) for name, x in self._record.items()}
        gradients = self._set_gradients(present=accumulates)
        with fused_attention(), Meter((self.backbone, *gradients), scalar=length) as meter:
            result = self.backbone.evaluate(_copy(inputs), record, Sampling())
            loss = result.logprob_BKA.sum() + result.entropy_BKA.sum() + result.value_B.sum()
            del result
            torch.autograd.backward([loss])
        self._set_gradients(present=False)
        return max(meter.peak - meter.held - (0 if accumulates else self.trained), 0)

    @lru_cache(maxsize=64)  # noqa: B019
    def step(self) -> int:
        """Peak bytes of one optimiser step, beyond weights, gradients and moments."""
        gradients = self._set_gradients(present=True)
        self._optimizer.step()
        moments = [x for state in self._optimizer.state.values() for x in state.values()]
        with Meter((self.backbone, *gradients, *moments)) as meter:
            self._optimizer.step()
        self._set_gradients(present=False)
        self._optimizer.state.clear()
        return meter.peak - meter.held

    def _set_gradients(self, *, present: bool) -> list[Tensor]:
        for parameter in self._trained:
            parameter.grad = torch.empty_like(parameter) if present else None
        return [p.grad for p in self._trained if p.grad is not None]

    def _inputs(self, batch: int) -> tuple[PolicyInputs, int]:
        """Inputs of `batch` observations, and the tokens of their text, which stays on the CPU with its numbers."""
        length = min(LONGEST_TEXT, int(self._one.text_mask_BL.sum()))
        many: dict[str, Any] = {}
        for field in fields(self._one):
            if isinstance(x := getattr(self._one, field.name), Tensor):
                text = field.name.startswith("text")
                x = x[:, :length] if text else x
                ids = text and not x.is_floating_point()
                many[field.name] = x.repeat(batch, 1) if ids else _repeated(x, batch)
        return replace(self._one, **many), length

    @cached_property
    def _record(self) -> Mapping[str, Tensor]:
        inputs, length = self._inputs(1)
        with torch.no_grad(), fused_attention(), Meter(scalar=length):
            return self.backbone.act(_copy(inputs), Sampling(), deterministic=False).record

    @cached_property
    def _one(self) -> PolicyInputs:
        conventions = self.backbone.conventions
        image = torch.zeros(1, conventions.image_size, conventions.image_size, 3, dtype=torch.uint8)
        obs = dict.fromkeys(conventions.cameras, image)
        obs["instruction"] = torch.from_numpy(encode_instruction(SENTENCE))[None]
        obs["state"] = torch.zeros(1, conventions.state_dim)
        return self.backbone.prepare(obs)


class OnMeta(TorchFunctionMode):
    """While it is entered, tensors asked for on any device are made on the meta device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is not None:
            given["device"] = META
        return func(*args, **given)


class Meter(TorchDispatchMode):
    """Count the bytes of live storages on the meta device, from entering on.

    :param held: modules and tensors that exist from the start.
    :param scalar: stands for an integer read from a tensor without numbers; a truth value is taken as True.
    """

    def __init__(self, held: Iterable[nn.Module | Tensor] = (), *, scalar: int = 1) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._scalar = scalar
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for one in held:
            for tensor in (*one.parameters(), *one.buffers()) if isinstance(one, nn.Module) else (one,):
                self._see(tensor)
        self.held = self.now

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _ATEN._local_scalar_dense.default and args[0].is_meta:
            kind = args[0].dtype
            return True if kind == torch.bool else 1.0 if kind.is_floating_point else self._scalar
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return out

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
    heads = query.shape[1]
    if enable_gqa and heads != key.shape[1]:
        # Of one head for all no copy is made.
        key, value = (
            x.expand(-1, heads, -1, -1) if x.shape[1] == 1 else x.repeat_interleave(heads // x.shape[1], dim=1)
            for x in (key, value)
        )
    bias = None
    if attn_mask is not None:
        bias = torch.empty(attn_mask.shape, dtype=query.dtype, device=META).expand(*query.shape[:3], key.shape[2])
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    return _ATEN._scaled_dot_product_efficient_attention(
        query, key, value, bias, tracked, dropout_p, is_causal, scale=scale
    )[0]


def _repeated(x: Tensor, batch: int) -> Tensor:
    return torch.empty(batch, *x.shape[1:], dtype=x.dtype, device=META)


def _copy(inputs: PolicyInputs) -> PolicyInputs:
    return replace(inputs, pixels_BMCHW=torch.empty_like(inputs.pixels_BMCHW))


def _bytes(tensors: list[Tensor] | list[nn.Parameter]) -> int:
    return sum({x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}.values())
