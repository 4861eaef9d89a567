"""The network in other sizes and patterns, against a plain computation: one pass over all tokens, no cache, no masks
of the library, attention written out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from vla_policies.smolvla.config import LlamaShape, NetworkShape, VisionShape, tiny_config
from vla_policies.smolvla.network import LlamaLayer, SmolVLANetwork

HEADS = {"num_heads": 6, "num_kv_heads": 3, "head_dim": 10}
OTHER = NetworkShape(
    vision=VisionShape(
        hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, patch_size=4, image_size=24
    ),
    pixel_shuffle=2,
    picture_size=24,
    text=LlamaShape(width=40, mlp_dim=56, depth=6, norm_epsilon=1e-4, **HEADS),
    vocab_size=50,
    expert=LlamaShape(width=22, mlp_dim=30, depth=6, norm_epsilon=1e-4, **HEADS),
    joint_layers=(0, 3),
    horizon=7,
    action_width=11,
    state_width=13,
    min_period=0.01,
    max_period=2.0,
)
SHAPES = {
    "tiny": tiny_config().network,
    "every third": OTHER,
    "all cross": replace(OTHER, joint_layers=()),
    "all joint": replace(OTHER, joint_layers=tuple(range(6))),
    "half the layers": replace(OTHER, expert=replace(OTHER.expert, depth=3), joint_layers=()),
    "brackets": replace(OTHER, image_brackets=(7, 9), empty_blocks=1),
    "smaller pictures": replace(OTHER, picture_size=16),
}


def turned(x_FC: Tensor, position: int) -> Tensor:
    """One token's heads `[heads, F]` at a position, pair (i, i + F/2) by position x 10000^(-2i/F)."""
    half = x_FC.shape[1] // 2
    angle = position * 10000.0 ** (-torch.arange(half) / half)
    low, high = x_FC[:, :half], x_FC[:, half:]
    return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], dim=1)


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + epsilon).sqrt() * weight


def attend(query_QHF: Tensor, key_KCF: Tensor, value_KCF: Tensor, sees_QK: Tensor) -> Tensor:
    """Attention head by head and query by query, `[Q, heads * F]`."""
    heads, group = query_QHF.shape[1], query_QHF.shape[1] // key_KCF.shape[1]
    rows = []
    for query, sees in zip(query_QHF, sees_QK, strict=True):
        out = []
        for head in range(heads):
            key, value = key_KCF[sees, head // group], value_KCF[sees, head // group]
            weight = (key @ query[head] / math.sqrt(query.shape[-1])).softmax(dim=0)
            out.append(weight @ value)
        rows.append(torch.cat(out))
    return torch.stack(rows)


def split(x: Tensor, head_dim: int) -> Tensor:
    return x.unflatten(-1, (-1, head_dim))


def finish(layer: LlamaLayer, x: Tensor, mixed: Tensor, epsilon: float) -> Tensor:
    x = x + mixed @ layer.self_attn.o_proj.weight.T
    normed = norm(x, layer.post_attention_layernorm.weight, epsilon)
    mlp = layer.mlp
    gate, up = normed @ mlp.gate_proj.weight.T, normed @ mlp.up_proj.weight.T
    return x + (gate * torch.sigmoid(gate) * up) @ mlp.down_proj.weight.T


def plain_velocity(
    network: SmolVLANetwork,
    shape: NetworkShape,
    images: Tensor,
    text: Tensor,
    state: Tensor,
    noisy: Tensor,
    time: float,
) -> Tensor:
    """The velocity `[H, D]` of one observation, whose tokens are all real."""
    text_model, head_dim, epsilon = network.vlm.text_model, shape.text.head_dim, shape.text.norm_epsilon
    table, scale = text_model.embed_tokens.weight, math.sqrt(shape.text.width)
    tokens = []
    for image_PW in images:
        image = [image_PW * scale]
        if shape.image_brackets is not None:
            fake, whole = shape.image_brackets
            image = [table[[fake, whole]], *image, table[[fake]]]
        tokens += image
    if shape.image_brackets is not None:
        fake, whole = shape.image_brackets
        tokens += [table[[fake, whole, fake]]] * shape.empty_blocks
    tokens += [table[text] * scale, network.state_proj(state)[None]]
    x = torch.cat(tokens)
    length = len(x)
    sees = torch.ones(length, length, dtype=torch.bool)
    sees[:-1, -1] = False
    read = []
    for layer in text_model.layers:
        assert isinstance(layer, LlamaLayer)
        normed = norm(x, layer.input_layernorm.weight, epsilon)
        query, key, value = (
            split(normed @ part.weight.T, head_dim)
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        )
        query, key = (torch.stack([turned(row, place) for place, row in enumerate(part)]) for part in (query, key))
        read.append((key, value))
        x = finish(layer, x, attend(query, key, value, sees), epsilon)
    suffix = plain_suffix(network, shape, noisy, time)
    count = len(suffix)
    for index, layer in enumerate(network.expert.layers):
        assert isinstance(layer, LlamaLayer)
        key, value = read[index * (shape.text.depth // shape.expert.depth)]
        normed = norm(suffix, layer.input_layernorm.weight, epsilon)
        attention = layer.self_attn
        query = split(normed @ attention.q_proj.weight.T, head_dim)
        if index in shape.joint_layers:
            query = torch.stack([turned(row, length + place) for place, row in enumerate(query)])
            own_key, own_value = (
                split(normed @ part.weight.T, head_dim) for part in (attention.k_proj, attention.v_proj)
            )
            own_key = torch.stack([turned(row, length + place) for place, row in enumerate(own_key)])
            key, value = torch.cat([key, own_key]), torch.cat([value, own_value])
            seen = torch.cat([torch.ones(count, length), torch.ones(count, count).tril()], dim=1).bool()
        else:
            query = torch.stack([turned(row, place) for place, row in enumerate(query)])
            key = split(key.flatten(1) @ attention.k_proj.weight.T, head_dim)
            value = split(value.flatten(1) @ attention.v_proj.weight.T, head_dim)
            seen = torch.ones(count, length, dtype=torch.bool)
        suffix = finish(layer, suffix, attend(query, key, value, seen), epsilon)
    return network.action_out_proj(norm(suffix, network.expert.norm.weight, epsilon))


def plain_suffix(network: SmolVLANetwork, shape: NetworkShape, noisy: Tensor, time: float) -> Tensor:
    half = shape.expert.width // 2
    ratio = shape.max_period / shape.min_period
    angles = [2 * math.pi * time / (shape.min_period * ratio ** (place / (half - 1))) for place in range(half)]
    embedded = torch.tensor([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
    both = torch.cat([network.action_in_proj(noisy), embedded.expand(len(noisy), -1)], dim=1)
    return network.action_time_mlp_out(functional.silu(network.action_time_mlp_in(both)))


def plain_shuffle(patches_PC: Tensor, factor: int) -> Tensor:
    """Squares of patches row by row, of each the patches row by row."""
    side = math.isqrt(len(patches_PC))
    return torch.stack(
        [
            torch.cat(
                [patches_PC[(i * factor + a) * side + j * factor + b] for a in range(factor) for b in range(factor)]
            )
            for i in range(side // factor)
            for j in range(side // factor)
        ]
    )


@torch.no_grad()
@pytest.mark.parametrize("name", SHAPES)
def test_the_velocity_is_that_of_a_plain_computation(name: str) -> None:
    shape = SHAPES[name]
    torch.manual_seed(0)
    network = SmolVLANetwork(shape)
    for parameter in network.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    side = shape.image_size
    pixels_BMCHW = 2 * torch.rand(2, 2, 3, side, side) - 1
    text_BL = torch.tensor([[3, 5, 8, 0], [4, 6, 1, 2]])
    text_mask_BL = torch.tensor([[True, True, True, False], [True] * 4])
    state_BS, noisy_BHD = torch.randn(2, shape.state_width), torch.randn(2, 5, shape.action_width)
    x_BLW, mask_BL = network.vlm.embed(pixels_BMCHW, None, text_BL, text_mask_BL)
    prefix = network.vlm(x_BLW, mask_BL, with_hidden=False)
    whole, _ = network.read_state(prefix, state_BS, with_hidden=False)
    hidden_BHE = network.hidden(network.expert.memory(whole), noisy_BHD, torch.tensor([0.3, 0.8]))
    got_BHD = network.velocity(hidden_BHE, 5)
    for row, time in enumerate((0.3, 0.8)):
        patches = [
            network.vlm.vision_model(pixel_values=image[None]).last_hidden_state[0] for image in pixels_BMCHW[row]
        ]
        weight = network.vlm.connector.modality_projection.proj.weight
        images = torch.stack([plain_shuffle(patch, shape.pixel_shuffle) @ weight.T for patch in patches])
        real = text_BL[row][text_mask_BL[row]]
        expected = plain_velocity(network, shape, images, real, state_BS[row], noisy_BHD[row], time)
        torch.testing.assert_close(got_BHD[row], expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_positions_of_patches_are_row_major_in_the_whole_table() -> None:
    torch.manual_seed(0)
    network = SmolVLANetwork(OTHER)
    embeddings = network.vlm.vision_model.embeddings
    embeddings.patch_embedding.weight.zero_()
    embeddings.patch_embedding.bias.zero_()
    there = torch.ones(1, 6, 6, dtype=torch.bool)
    got = embeddings(torch.zeros(1, 3, 24, 24), there)[0]
    assert torch.equal(got, embeddings.position_embedding.weight)
