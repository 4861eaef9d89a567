"""Every tensor of the tiny OpenVLA-OFT fixture, reproduced."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vla_policies.actions.sampling import Sampling
from vla_policies.loading import load_checkpoint
from vla_policies.model_folder import Request
from vla_policies.modules.heads import ValueHead
from vla_policies.modules.training import store_activations
from vla_policies.openvla.llama import run_layers
from vla_policies.openvla.oft import OpenVLAOFTBackbone
from vla_policies.openvla.processor import bin_centres
from vla_policies.resolver import open_folder
from vla_policies.types import PolicyInputs

RAW = {"camera_resize": "bicubic", "center_crop": False}
TWO = {**RAW, "cameras": ("image", "wrist_image")}
L1 = {**TWO, "use_state": True, "head": "l1"}
FIRST_ID = 31744
SAMPLES = pytest.mark.parametrize("i", range(3))

Observe = Callable[[int], dict[str, Tensor]]
Golden = dict[str, Tensor]
OpenWith = Callable[..., OpenVLAOFTBackbone]


@pytest.fixture(scope="module")
def open_with(folder: Path, samples: list[dict[str, Any]]) -> OpenWith:
    """`open_with(i, **options)`: the checkpoint with the statistics of sample i."""

    @cache
    def opened(key: str, options: str) -> OpenVLAOFTBackbone:
        request = Request(unnorm_key=key, options=json.loads(options))
        backbone = load_checkpoint(open_folder(folder, request))[0]
        assert isinstance(backbone, OpenVLAOFTBackbone)
        return backbone

    return lambda i, **options: opened(samples[i]["unnorm_key"], json.dumps({**RAW, **options}))


def close(got: Tensor, wanted: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(got.float(), wanted.float(), rtol=0.0, atol=atol)


def close_logits(got: Tensor, wanted: Tensor) -> None:
    """`[..., V]`: as close as float32 sums can be in another order.

    A logit is a dot product, whose terms may be much larger than itself: its rounding error goes with the row's
    largest logit (7 to 13 here), not with its own size, and differs by 1.4e-4 between CPUs. A fault moves
    logits far more.
    """
    allowed = 1e-4 + 2e-5 * wanted.abs().amax(dim=-1, keepdim=True)
    excess = ((got - wanted).abs() - allowed).max().item()
    assert excess <= 0.0, f"logits are not close: {excess:.3g} beyond the tolerance"


def value_head(folder: Path, outputs: int) -> ValueHead:
    head = ValueHead(64, outputs)
    prefix = f"out{outputs}.value_head."
    tensors = load_file(folder / "value_heads.safetensors")
    head.load_state_dict({k.removeprefix(prefix): v.float() for k, v in tensors.items() if k.startswith(prefix)})
    return head


@SAMPLES
@torch.no_grad()
def test_one_image(open_with: OpenWith, observe: Observe, golden: Golden, folder: Path, i: int) -> None:
    backbone = open_with(i)
    inputs = backbone.prepare(observe(i))
    assert torch.equal(inputs.text_BL[0], golden[f"s{i}.input_ids"])
    assert torch.equal(inputs.text_BL[0, :-1], golden[f"s{i}.input_ids_tokenizer"])
    assert torch.equal(inputs.text_mask_BL[0].long(), golden[f"s{i}.attention_mask"])
    close(backbone.network.encode_images(inputs.pixels_BMCHW)[0], golden[f"s{i}.projected_patch_embeddings"])
    segment, _, _ = backbone.sequence(inputs)
    x_BLD = run_layers(backbone.network.language_model.model, segment, store_activations)
    close(backbone.network.final_norm(x_BLD)[0], golden[f"s{i}.last_hidden"])
    hidden_SD = backbone.slot_hidden(inputs)[0]
    logits_SV = backbone(inputs).logits_BKAV.flatten(1, 2)[0]
    close_logits(logits_SV, golden[f"s{i}.chunk_logits_action_range"][:, :256])
    full_SV = backbone.network.language_model.lm_head(hidden_SD)
    close_logits(full_SV[:, FIRST_ID:], golden[f"s{i}.chunk_logits_action_range"])
    close(full_SV[:, :FIRST_ID].max(dim=1).values, golden[f"s{i}.chunk_logits_max_below_31744"])
    assert torch.equal(full_SV.argmax(dim=1), golden[f"s{i}.chunk_argmax_full_vocab"])
    if i == 0:
        close_logits(full_SV[:8], golden["s0.chunk_logits_full_vocab_first8"])
    chosen = full_SV.log_softmax(-1).gather(1, golden[f"s{i}.chunk_argmax_last256"][:, None])[:, 0]
    close(chosen, golden[f"s{i}.logprob_full_vocab_T1.0"])
    for outputs, level in ((1, "chunk"), (8, "action")):
        close(value_head(folder, outputs)(hidden_SD[:1])[0], golden[f"s{i}.value_{level}_level"])


@SAMPLES
@torch.no_grad()
def test_actions_and_their_log_probabilities(open_with: OpenWith, observe: Observe, golden: Golden, i: int) -> None:
    backbone = open_with(i)
    inputs = backbone.prepare(observe(i))
    sample = backbone.act(inputs, Sampling(), deterministic=True)
    token_KA = sample.record["token"][0]
    assert torch.equal(token_KA.flatten() + FIRST_ID, golden[f"s{i}.chunk_argmax_last256"])
    numbers = bin_centres()[token_KA.numpy()]
    assert np.array_equal(numbers, golden[f"s{i}.normalized_actions"].numpy())
    actions = backbone.processor.action_normaliser.unnormalise(numbers)
    assert np.array_equal(actions, golden[f"s{i}.actions"].numpy())
    for temperature in (1.0, 1.6):
        result = backbone.evaluate(inputs, sample.record, Sampling(temperature=temperature))
        close(result.logprob_BKA.flatten(), golden[f"s{i}.logprob_last256_T{temperature}"])
        close(result.entropy_BKA.flatten(), golden[f"s{i}.entropy_last256_T{temperature}"])


def test_pixel_values_are_exact(open_with: OpenWith, observe: Observe, golden: Golden) -> None:
    pixels_MCHW = open_with(0, **TWO).prepare(observe(0)).pixels_BMCHW[0]
    assert torch.equal(pixels_MCHW[0], golden["s0.pixel_values"])
    assert torch.equal(pixels_MCHW[1], golden["s0.pixel_values_wrist"])


@SAMPLES
@torch.no_grad()
def test_two_images(open_with: OpenWith, observe: Observe, golden: Golden, i: int) -> None:
    backbone = open_with(i, **TWO)
    inputs = backbone.prepare(observe(i))
    hidden_SD = backbone.slot_hidden(inputs)[0]
    full_SV = backbone.network.language_model.lm_head(hidden_SD)
    close_logits(full_SV[:, FIRST_ID:], golden[f"s{i}.two_image.chunk_logits_action_range"])
    assert torch.equal(full_SV.argmax(dim=1), golden[f"s{i}.two_image.chunk_argmax_full_vocab"])
    token_KA = backbone.act(inputs, Sampling(), deterministic=True).record["token"][0]
    actions = backbone.processor.action_normaliser.unnormalise(bin_centres()[token_KA.numpy()])
    assert np.array_equal(actions, golden[f"s{i}.two_image.actions"].numpy())


@SAMPLES
@torch.no_grad()
def test_the_regression_head(open_with: OpenWith, observe: Observe, golden: Golden, i: int) -> None:
    backbone = open_with(i, **L1)
    inputs = backbone.prepare(observe(i))
    assert inputs.state_BS is not None
    close(inputs.state_BS[0], golden[f"s{i}.proprio_normalized"], atol=1e-6)
    segment, _, _ = backbone.sequence(inputs)
    if i == 0:
        close(segment.x_BLD[0, 1:514], golden["s0.l1.prefix_embeddings"])
    hidden_BSD = backbone.slot_hidden(inputs)
    close(hidden_BSD[0], golden[f"s{i}.l1.action_hidden"])
    assert backbone.regression is not None
    number_BKA = backbone.regression(hidden_BSD)
    close(number_BKA[0], golden[f"s{i}.l1.normalized_actions"], atol=1e-5)
    actions = backbone.processor.action_normaliser.unnormalise(golden[f"s{i}.l1.normalized_actions"].numpy())
    assert np.array_equal(actions, golden[f"s{i}.l1.actions"].numpy())
    sample = backbone.act(inputs, Sampling(), deterministic=True)
    close(sample.action_BKA[0, :, :6], golden[f"s{i}.l1.actions"][:, :6].clamp(-1, 1), atol=1e-5)
    assert set(sample.action_BKA[0, :, 6].tolist()) <= {-1.0, 1.0}


@pytest.fixture(scope="module")
def batch(open_with: OpenWith, observe: Observe, samples: list[dict[str, Any]]) -> PolicyInputs:
    """All samples at once; their pictures differ in size, so each is prepared alone."""
    backbone = open_with(0)
    pixels = torch.cat([backbone.prepare(observe(i)).pixels_BMCHW for i in range(3)])
    text_BL, mask_BL = backbone.processor.tokenizer.batch([s["instruction"] for s in samples], 32000)
    return PolicyInputs(pixels, text_BL, mask_BL, None)


@torch.no_grad()
def test_a_padded_batch_is_simplevlas(open_with: OpenWith, golden: Golden, batch: PolicyInputs) -> None:
    # SimpleVLA-RL pads on the left, this project on the right. The real ids are the same.
    for row in range(3):
        ids_L = golden["batch.input_ids_left_padded"][row]
        assert torch.equal(
            ids_L[golden["batch.attention_mask"][row].bool()], batch.text_BL[row][batch.text_mask_BL[row]]
        )
    backbone = open_with(0)
    segment, _, _ = backbone.sequence(batch)
    assert segment.mask is not None
    visible_B = golden["batch.multimodal_attention_mask"].sum(dim=1)
    assert torch.equal(segment.mask.sum(dim=(1, 2, 3)), visible_B)
    logits_BSV = backbone(batch).logits_BKAV.flatten(1, 2)
    close_logits(logits_BSV, golden["batch.chunk_logits_action_range"][..., :256])
    token_BS = logits_BSV.argmax(dim=-1)
    assert torch.equal(token_BS + FIRST_ID, golden["batch.response_ids"])
    numbers = bin_centres()[token_BS.view(3, 8, 7).numpy()]
    actions = backbone.processor.action_normaliser.unnormalise(numbers)
    assert np.array_equal(actions, golden["batch.actions_first_key"].numpy())


@torch.no_grad()
def test_checkpoints_without_a_stop_token_are_rlinfs(open_with: OpenWith, batch: PolicyInputs, folder: Path) -> None:
    golden = load_file(folder / "golden_rlinf.safetensors")
    backbone = open_with(0, stop_token=False)
    segment, _, _ = backbone.sequence(batch)
    assert segment.mask is not None
    for row in range(3):
        ids_L = golden["input_ids"][row][golden["attention_mask"][row]]
        assert torch.equal(ids_L, batch.text_BL[row][batch.text_mask_BL[row]])
        real_L = golden["multimodal_attention_mask"][row]
        visible_L = segment.mask[row, 0, 0]
        assert torch.equal(golden["position_ids"][row][real_L], segment.position_BL[row][visible_L])
    close_logits(backbone(batch).logits_BKAV.flatten(1, 2), golden["chunk_logits_action_range"][..., :256])
    backbone.value_head = value_head(folder, 1)
    sample = backbone.act(batch, Sampling(), deterministic=True)
    assert torch.equal(sample.record["token"], golden["action_tokens"] - FIRST_ID)
    close(sample.logprob_BKA.flatten(1), golden["prev_logprobs"])
    close(sample.value_B, golden["prev_values"][:, 0])
    numbers = bin_centres()[sample.record["token"].numpy()]
    actions = backbone.processor.action_normaliser.unnormalise(numbers)
    assert np.abs(actions - golden["actions"].numpy()).max() < 1e-12
    for temperature in (1.0, 1.6):
        result = backbone.evaluate(batch, sample.record, Sampling(temperature=temperature))
        close(result.logprob_BKA.flatten(1), golden[f"train.logprobs_T{temperature}"])
        close(result.entropy_BKA.flatten(1), golden[f"train.entropy_T{temperature}"])
        close(result.value_B, golden["train.values"][:, 0])
