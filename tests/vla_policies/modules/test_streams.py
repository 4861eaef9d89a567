from __future__ import annotations

import pytest
import torch
from transformers import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm, GemmaRotaryEmbedding

from vla_policies.modules.streams import (
    AdaptiveRMSNorm,
    GemmaLayer,
    GemmaShape,
    masked_mean,
    rotary_embedding,
    suffix_mask,
)

SHAPE = GemmaShape(width=24, mlp_dim=48, depth=2, num_heads=4, num_kv_heads=1, head_dim=8)


def test_rotary_embedding_is_gemmas() -> None:
    position = torch.tensor([[0, 1, 7, 900]])
    config = GemmaConfig(hidden_size=24, num_attention_heads=4, head_dim=8)
    expected = GemmaRotaryEmbedding(config)(torch.zeros(1), position)
    for got, want in zip(rotary_embedding(position, 8, torch.float32), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_suffix_mask_by_hand() -> None:
    prefix = torch.tensor([[True, False]])
    # Columns: two prefix tokens, state, two actions. The state does not see the actions.
    mask = suffix_mask(prefix, 2, state_token=True)[0, 0].int().tolist()
    assert mask == [[1, 0, 1, 0, 0], [1, 0, 1, 1, 1], [1, 0, 1, 1, 1]]
    assert suffix_mask(prefix, 2, state_token=False)[0, 0].int().tolist() == [[1, 0, 1, 1]] * 2


def test_adaptive_norm_by_hand() -> None:
    norm = AdaptiveRMSNorm(2)
    with torch.no_grad():
        # Scale 1, shift 3, gate 5 whatever the condition: the weights are zero.
        norm.dense.bias.copy_(torch.tensor([1.0, 1.0, 3.0, 3.0, 5.0, 5.0]))
    normed, gate = norm(torch.tensor([[[3.0, 4.0]]]), torch.ones(1, 2))
    rms = (12.5 + 1e-6) ** 0.5
    assert normed[0, 0].tolist() == pytest.approx([2 * 3 / rms + 3, 2 * 4 / rms + 3])
    assert gate[0, 0].tolist() == [5.0, 5.0]


def test_a_fresh_adaptive_norm_is_a_plain_one() -> None:
    x = torch.randn(2, 3, 24)
    normed, gate = AdaptiveRMSNorm(24)(x, torch.randn(2, 24))
    torch.testing.assert_close(normed, GemmaRMSNorm(24)(x))
    assert (gate == 0).all()


def test_tokens_read_earlier_equal_tokens_read_together() -> None:
    torch.manual_seed(0)
    layer = GemmaLayer(SHAPE, adaptive=False)
    x = torch.randn(2, 7, 24)
    rotary = rotary_embedding(torch.arange(7).expand(2, -1), 8, x.dtype)
    causal = torch.ones(7, 7, dtype=torch.bool).tril()[None, None].expand(2, -1, -1, -1)
    together, _ = layer(x, rotary, causal)
    first = tuple(part[:, :4] for part in rotary)
    _, kept = layer(x[:, :4], first, causal[..., :4, :4])
    only = layer.key_value(x[:, :4], first)
    assert torch.equal(only.key_BCLF, kept.key_BCLF)
    assert torch.equal(only.value_BCLF, kept.value_BCLF)
    rest, own = layer(x[:, 4:], tuple(part[:, 4:] for part in rotary), causal[..., 4:, :], kept)
    torch.testing.assert_close(rest, together[:, 4:])
    assert own.key_BCLF.shape == (2, 1, 3, 8)


def test_masked_mean_by_hand() -> None:
    x = torch.tensor([[[2.0], [4.0], [100.0]]])
    assert masked_mean(x, torch.tensor([[True, True, False]])).tolist() == [[3.0]]
