"""What a policy takes of a GPU: bytes of weights, gradients, optimiser and passes, and floating point operations.

The network is built on the meta device from its family's own description, and acts, is scored, goes backward and steps
there as it does on a GPU; nothing is estimated by a formula of a family. A new family is counted with no line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vla_gym.observation import encode_instruction
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Backbone
from vla_policies.conventions import Conventions
from vla_policies.loading import fresh_backbone
from vla_policies.modules.meta_device import META, Meter, OnMeta, fused_attention
from vla_policies.modules.optimizer import GroupScaledAdamW, parameter_groups
from vla_policies.modules.sharding_units import units
from vla_policies.precision import built_for
from vla_policies.registry import family_class
from vla_policies.types import PolicyInputs

SENTENCE = "pick up the black bowl between the plate and the ramekin and place it on the plate"
"""LIBERO-Spatial's first task, one of its long ones."""
LONGEST_TEXT = 40
"""Tokens of a long prompt, LIBERO's have 20 to 40: byte tokens, which stand in for a tokenizer that is not here, are
more."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Bytes of a policy without its passes; exact."""

    frozen: int
    """Weights that do not train, and buffers."""
    trained: int
    """Weights that train."""
    gradients: int
    """As large as the trained weights."""
    optimizer: int
    """Adam's two moments."""

    @property
    def total(self) -> int:
        return self.frozen + self.trained + self.gradients + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over a batch."""

    peak: int
    """Bytes at the peak beyond all of `Weights`: inputs, activations, temporary results."""
    operations: int
    """Kernels launched, at most."""
    flops: Mapping[int, float]
    """Bytes of a number (2: half precision, 4: float32) -> floating point operations."""


class Footprint:
    """A policy without memory, to be counted.

    :param options: the user's `backbone_kwargs`; without a size they are taken for the family's published network.
    """

    def __init__(self, family: str, conventions: Conventions, options: Mapping[str, Any]) -> None:
        complete = family_class(family).planned_options(options)
        with OnMeta(), META, built_for("cuda"):
            self.backbone: Backbone = fresh_backbone(family, conventions, complete)
            value = self.backbone.value_parameters()
            groups = parameter_groups(self.backbone, value, 1.0)
            # GPUs update all tensors at once, which holds a temporary result of each.
            self._optimizer = GroupScaledAdamW(groups, lr=1e-5, foreach=True)
        self._counted: dict[tuple[str, int, bool], Pass] = {}

    @cached_property
    def weights(self) -> Weights:
        """Exact bytes of all that stays."""
        trained = _bytes([p for p in self.backbone.parameters() if p.requires_grad])
        whole = _bytes([*self.backbone.parameters(), *self.backbone.buffers()])
        return Weights(frozen=whole - trained, trained=trained, gradients=trained, optimizer=2 * trained)

    @cached_property
    def num_trained(self) -> int:
        """Numbers that train."""
        return sum(p.numel() for p in self.backbone.parameters() if p.requires_grad)

    def block_sizes(self) -> list[int]:
        """Numbers that train in each part that FSDP2 gathers alone, without what is left of the network."""
        blocks = units(self.backbone)[:-1]
        return [sum(p.numel() for p in block.parameters() if p.requires_grad) for block in blocks]

    def act(self, batch: int) -> Pass:
        """Decide for so many observations."""
        return self._once(("act", batch, False), lambda: self._act(batch))

    def update(self, batch: int, *, accumulates: bool = False) -> Pass:
        """Score so many decisions and go backward; gradients are counted in `Weights`.

        :param accumulates: whether gradients of an earlier micro-batch are there from the start.
        """
        return self._once(("update", batch, accumulates), lambda: self._update(batch, accumulates))

    def step(self) -> Pass:
        """One step of the optimiser, whose moments are counted in `Weights`."""
        return self._once(("step", 0, False), self._step)

    def _once(self, key: tuple[str, int, bool], count: Callable[[], Pass]) -> Pass:
        """The same count again costs nothing; the first takes seconds."""
        if key not in self._counted:
            self._counted[key] = count()
        return self._counted[key]

    def _act(self, batch: int) -> Pass:
        inputs, length = self._inputs(batch)
        meter = Meter((self.backbone,), scalar=length)
        with torch.no_grad(), fused_attention(), meter:
            held = meter.start()
            self.backbone.act(_on_meta(inputs), Sampling(), deterministic=False)
        return Pass(peak=meter.peak - held, operations=meter.operations, flops=meter.flops)

    def _update(self, batch: int, accumulates: bool) -> Pass:
        inputs, length = self._inputs(batch)
        record = {name: _repeated(x, batch) for name, x in self._record.items()}
        gradients = self._set_gradients(present=accumulates)
        meter = Meter((self.backbone, *gradients), scalar=length)
        with fused_attention(), meter:
            held = meter.start()
            result = self.backbone.evaluate(_on_meta(inputs), record, Sampling())
            loss = result.logprob_BKA.sum() + result.entropy_BKA.sum() + result.value_B.sum()
            del result
            torch.autograd.backward([loss])
        self._set_gradients(present=False)
        # Gradients that this pass makes are counted once, among the weights.
        made = 0 if accumulates else self.weights.gradients
        return Pass(peak=max(meter.peak - held - made, 0), operations=meter.operations, flops=meter.flops)

    def _step(self) -> Pass:
        gradients = self._set_gradients(present=True)
        self._optimizer.step()
        moments = [x for state in self._optimizer.state.values() for x in state.values()]
        meter = Meter((self.backbone, *gradients, *moments))
        with meter:
            held = meter.start()
            self._optimizer.step()
        self._set_gradients(present=False)
        self._optimizer.state.clear()
        return Pass(peak=meter.peak - held, operations=meter.operations, flops=meter.flops)

    def _set_gradients(self, *, present: bool) -> list[Tensor]:
        """Give every weight that trains a gradient, or none; return them."""
        trained = [p for p in self.backbone.parameters() if p.requires_grad]
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter) if present else None
        return [p.grad for p in trained if p.grad is not None]

    def _inputs(self, batch: int) -> tuple[PolicyInputs, int]:
        """Inputs of so many observations, and the tokens of their text."""
        one = self._one
        length = min(LONGEST_TEXT, int(one.text_mask_BL.sum()))
        one = replace(one, text_BL=one.text_BL[:, :length], text_mask_BL=one.text_mask_BL[:, :length])
        # Words and their masks stay on the CPU, with their numbers.
        many: dict[str, Any] = {
            field.name: x.expand(batch, *x.shape[1:]).contiguous()
            if field.name.startswith("text")
            else _repeated(x, batch)
            for field in fields(one)
            if isinstance(x := getattr(one, field.name), Tensor)
        }
        return replace(one, **many), length

    @cached_property
    def _record(self) -> Mapping[str, Tensor]:
        """What the rollout keeps of one decision."""
        inputs, length = self._inputs(1)
        with torch.no_grad(), fused_attention(), Meter(scalar=length):
            return self.backbone.act(_on_meta(inputs), Sampling(), deterministic=False).record

    @cached_property
    def _one(self) -> PolicyInputs:
        """Inputs of one observation, as the family prepares it."""
        conventions = self.backbone.conventions
        side = conventions.image_size
        image = torch.zeros(1, side, side, 3, dtype=torch.uint8)
        obs = dict.fromkeys(conventions.cameras, image)
        obs["instruction"] = torch.from_numpy(encode_instruction(SENTENCE))[None]
        obs["state"] = torch.zeros(1, conventions.state_dim)
        return self.backbone.prepare(obs)


def _repeated(x: Any, batch: int) -> Any:
    return torch.empty(batch, *x.shape[1:], dtype=x.dtype, device=META) if isinstance(x, Tensor) else x


def _on_meta(inputs: PolicyInputs) -> PolicyInputs:
    """A copy that the meter in force sees come and go."""
    return replace(inputs, pixels_BMCHW=torch.empty_like(inputs.pixels_BMCHW))


def _bytes(tensors: list[Tensor]) -> int:
    """Bytes of different storages."""
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())
