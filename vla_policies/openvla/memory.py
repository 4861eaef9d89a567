"""GPU memory for training OpenVLA-OFT with LoRA, counted item by item on tensors without memory.

`python -m vla_policies.openvla.memory --micro-batch 8` prints it. Nothing is loaded: the network is built on the
"meta" device, where shapes and types are real and numbers are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.conventions import Conventions
from vla_policies.modules.activation_checkpointing import store_activations
from vla_policies.modules.lora import LoraSettings, attach
from vla_policies.modules.value_head import ValueHead
from vla_policies.openvla.config import Settings
from vla_policies.openvla.fresh import fresh_config
from vla_policies.openvla.llama import Segment, run_layers
from vla_policies.openvla.network import LORA_TARGETS, PrismaticNetwork

CHUNK, ACTION_DIM = 8, 7
"""OpenVLA-OFT's slots on LIBERO: K x A."""
TRAINED_BYTES = 16
"""Of a trained parameter: itself, its gradient and Adam's two moments, float32 each."""
RESERVE = 2 * 2**30
"""CUDA context, cuBLAS workspaces and gaps between blocks: an allowance, not a count."""
WORDS = 40
"""Tokens of a long prompt; LIBERO's are 20 to 40."""


@dataclass(frozen=True)
class MemoryItem:
    """One item of the sum."""

    name: str
    formula: str
    """Its computation, for the reader."""
    size: int
    """Bytes."""


def budget(*, size: str = "7b", rank: int = 32, micro_batch: int = 8, images: int = 1) -> list[MemoryItem]:
    """The GPU's content at the peak of an update with `recompute: true`."""
    network, settings = _network(size), LoraSettings(rank=rank)
    weights = sum(p.numel() for p in network.parameters())
    attach(network, settings, LORA_TARGETS)
    adapters = sum(p.numel() for name, p in network.named_parameters() if ".lora_" in name)
    critic = sum(p.numel() for p in ValueHead(network.width, 1).parameters())
    towers: list[Any] = [network.vision_backbone.featurizer, network.vision_backbone.fused_featurizer]
    layers = network.language_model.model.layers
    patches = towers[0].pos_embed.shape[1]
    tokens = images * patches + WORDS + CHUNK * ACTION_DIM + 1
    text_kept = len(layers) * micro_batch * tokens * network.width * 2
    image_kept = 0
    for tower in towers:
        if tower is not None:
            tower_tokens = micro_batch * images * (patches + tower.num_prefix)
            image_kept += (len(tower.blocks) - 1) * tower_tokens * tower.pos_embed.shape[2] * 2
    block = _block_bytes(network, micro_batch, tokens)
    return [
        MemoryItem("weights, bf16, frozen", f"{weights:,} x 2 B", 2 * weights),
        MemoryItem(f"adapters of rank {rank}", f"{adapters:,} x {TRAINED_BYTES} B", TRAINED_BYTES * adapters),
        MemoryItem("critic", f"{critic:,} x {TRAINED_BYTES} B", TRAINED_BYTES * critic),
        MemoryItem(
            "inputs of the Llama layers",
            f"{len(layers)} x {micro_batch} x {tokens} tokens x {network.width} x 2 B",
            text_kept,
        ),
        MemoryItem("inputs of the image blocks", f"{micro_batch * images} images, both towers", image_kept),
        MemoryItem("one Llama layer computed again", "every tensor its backward pass keeps", block),
        MemoryItem("its gradients", "no more than the layer itself", block),
        MemoryItem("allowance", "CUDA context, workspaces, gaps", RESERVE),
    ]


def _network(size: str) -> PrismaticNetwork:
    conventions = Conventions(cameras=("image",), image_size=224, state_dim=0, chunk=CHUNK, action_dim=ACTION_DIM)
    config = fresh_config(conventions, {"size": size}, Settings(), "openvla-oft")
    with torch.device("meta"):
        return PrismaticNetwork(config).to(torch.bfloat16)


def _block_bytes(network: PrismaticNetwork, batch: int, tokens: int) -> int:
    """Bytes that autograd keeps of one Llama layer."""
    model = network.language_model.model
    x_BLD = torch.empty(batch, tokens, network.width, dtype=torch.bfloat16, device="meta", requires_grad=True)
    position_BL = torch.zeros(batch, tokens, dtype=torch.int64, device="meta")
    segment = Segment(x_BLD, position_BL, mask=None)
    own = {id(p) for p in network.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if id(x) not in own and not isinstance(x, nn.Parameter):
            kept[id(x)] = x
        return x

    with _fused_attention(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        run_layers(model, segment, store_activations, layers=model.layers[:1])
    own_storage = {p.untyped_storage()._cdata for p in network.parameters()}
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in kept.values()}
    return sum(size for key, size in storages.items() if key not in own_storage)


class _Fused(torch.autograd.Function):
    """Stores what fused attention kernels store: query, key, value, output and a number per query and head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Any:
        raise NotImplementedError("only counted, never run")


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Context manager for fused attention: tensors without memory would take the unfused one, which no GPU does."""
    former: Callable[..., Tensor] = functional.scaled_dot_product_attention

    def fused(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _Fused.apply(query, key, value)

    functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = former


def table(items: list[MemoryItem]) -> str:
    """The items and their sum, in GiB."""
    total = sum(item.size for item in items)
    rows = [f"{item.size / 2**30:8.2f} GiB   {item.name:<32} {item.formula}" for item in items]
    return "\n".join([*rows, f"{total / 2**30:8.2f} GiB   in all ({total / 1e9:.1f} GB)"])


def main() -> None:
    """Print the sum for a network, a rank and a micro-batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="7b", help="7b, 100m or tiny")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--images", type=int, default=1)
    args = parser.parse_args()
    items = budget(size=args.size, rank=args.rank, micro_batch=args.micro_batch, images=args.images)
    print(table(items))  # noqa: T201 - a command


if __name__ == "__main__":
    main()
