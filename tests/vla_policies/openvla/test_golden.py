"""Every tensor of the tiny OpenVLA fixture, reproduced."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vla_policies.actions.sampling import Sampling
from vla_policies.loading import load_checkpoint
from vla_policies.model_folder import Request
from vla_policies.modules.training import store_activations
from vla_policies.openvla.llama import prefill, run_layers
from vla_policies.openvla.policy import OpenVLABackbone
from vla_policies.openvla.processor import bin_centres, openvla_prompt
from vla_policies.resolver import open_folder
from vla_policies.types import PolicyInputs

RAW = {"camera_resize": "bicubic", "center_crop": False}
SAMPLES = pytest.mark.parametrize("i", range(4))
Observe = Callable[[int], dict[str, Tensor]]
Golden = dict[str, Tensor]


@pytest.fixture(scope="module")
def open_with(folder: Path) -> Callable[[str], OpenVLABackbone]:
    @cache
    def build(key: str) -> OpenVLABackbone:
        backbone = load_checkpoint(open_folder(folder, Request(unnorm_key=key, options=RAW)))[0]
        assert isinstance(backbone, OpenVLABackbone)
        return backbone

    return build


@pytest.fixture(scope="module")
def backbone(open_with: Callable[[str], OpenVLABackbone]) -> OpenVLABackbone:
    return open_with("bridge_orig")


def close(got: Tensor, wanted: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(got.float(), wanted.float(), rtol=0.0, atol=atol)


@SAMPLES
def test_prompt_and_token_ids(
    backbone: OpenVLABackbone, observe: Observe, golden: Golden, samples: list[dict[str, Any]], i: int
) -> None:
    assert openvla_prompt(samples[i]["instruction"]) == samples[i]["prompt"]
    inputs = backbone.prepare(observe(i))
    assert torch.equal(inputs.text_BL[0], golden[f"s{i}.input_ids"])
    assert torch.equal(inputs.text_mask_BL[0].long(), golden[f"s{i}.attention_mask"])
    assert torch.equal(inputs.text_BL[0, :-1], golden[f"s{i}.input_ids_tokenizer"])
    assert golden[f"s{i}.attention_mask_tokenizer"].all()


def test_pixel_values_are_exact(backbone: OpenVLABackbone, observe: Observe, golden: Golden) -> None:
    assert torch.equal(backbone.prepare(observe(0)).pixels_BMCHW[0, 0], golden["s0.pixel_values"])


@SAMPLES
@torch.no_grad()
def test_features_and_patches(backbone: OpenVLABackbone, observe: Observe, golden: Golden, i: int) -> None:
    pixels_BMCHW = backbone.prepare(observe(i)).pixels_BMCHW
    vision = backbone.network.vision_backbone
    close(vision.featurizer(pixels_BMCHW[:, 0, :3], store_activations)[0], golden[f"s{i}.dino_features"])
    assert vision.fused_featurizer is not None
    close(vision.fused_featurizer(pixels_BMCHW[:, 0, 3:], store_activations)[0], golden[f"s{i}.siglip_features"])
    close(backbone.network.encode_images(pixels_BMCHW)[0], golden[f"s{i}.projected_patch_embeddings"])


@SAMPLES
@torch.no_grad()
def test_hidden_states_of_the_prompt(backbone: OpenVLABackbone, observe: Observe, golden: Golden, i: int) -> None:
    prompt = backbone._prompt(backbone.prepare(observe(i)))
    x_BLD = run_layers(backbone.network.language_model.model, prompt.segment, store_activations)
    close(backbone.network.final_norm(x_BLD)[0], golden[f"s{i}.prefill_last_hidden"])
    cached, _ = prefill(backbone.network.language_model.model, prompt.segment, room=6)
    assert torch.equal(cached, x_BLD)


@SAMPLES
@torch.no_grad()
def test_generation_with_a_cache(
    open_with: Callable[[str], OpenVLABackbone], observe: Observe, golden: Golden, samples: list[dict[str, Any]], i: int
) -> None:
    backbone = open_with(samples[i]["unnorm_key"])
    sample = backbone.act(backbone.prepare(observe(i)), Sampling(), deterministic=True)
    token_A = sample.record["token"][0, 0]
    assert torch.equal(token_A + backbone.network.first_action_id, golden[f"s{i}.generated_ids"])
    numbers = bin_centres()[token_A.numpy()]
    assert np.array_equal(numbers, golden[f"s{i}.normalized_actions"].numpy())
    actions = backbone.processor.action_normaliser.unnormalise(numbers)
    assert np.array_equal(actions, golden[f"s{i}.actions"].numpy())
    # The environment gets the same, but for a gripper that is fully open or closed.
    close(sample.action_BKA[0, 0, :6], golden[f"s{i}.actions"][:6], atol=1e-6)
    close(sample.logprob_BKA[0, 0], golden[f"s{i}.logprob_last256"])


@SAMPLES
@torch.no_grad()
def test_teacher_forced_scores(backbone: OpenVLABackbone, observe: Observe, golden: Golden, i: int) -> None:
    token_BKA = (golden[f"s{i}.generated_ids"] - backbone.network.first_action_id)[None, None]
    inputs = backbone.prepare(observe(i))
    result = backbone.evaluate(inputs, {"token": token_BKA}, Sampling())
    close(result.logprob_BKA[0, 0], golden[f"s{i}.logprob_last256"])
    close(result.entropy_BKA[0, 0], golden[f"s{i}.entropy_last256"])
    _, distribution = backbone._teacher_forced(backbone._prompt(inputs), token_BKA[:, 0], Sampling())
    wanted_AV = golden[f"s{i}.action_logits_teacher_forced_tail"][:, :256].log_softmax(dim=-1)
    close(distribution.log_probs_BKAV[0, 0], wanted_AV)


@SAMPLES
@torch.no_grad()
def test_hidden_states_and_logits_of_every_step(
    backbone: OpenVLABackbone, observe: Observe, golden: Golden, i: int
) -> None:
    backbone_logits = []
    original = backbone.network.action_logits
    seen = []

    def spy(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        backbone_logits.append(original(hidden))
        return backbone_logits[-1]

    backbone.network.action_logits = spy  # type: ignore[method-assign]
    try:
        backbone.act(backbone.prepare(observe(i)), Sampling(), deterministic=True)
    finally:
        del backbone.network.action_logits
    close(torch.cat(seen[:7]), golden[f"s{i}.step_last_hidden"])
    close(seen[7][0], golden[f"s{i}.step_last_hidden"])
    close(torch.cat(backbone_logits[:7]), golden[f"s{i}.action_logits_teacher_forced_tail"][:, :256])
    if i == 0:
        close(torch.cat(backbone_logits[:7]), golden["s0.action_logits"][:, 31744:32000])
        full = backbone.network.language_model.lm_head(torch.cat(seen[:7]))
        close(full, golden["s0.action_logits"])
        chosen = full.log_softmax(-1).gather(1, golden["s0.generated_ids"][:, None])[:, 0]
        close(chosen, golden["s0.logprob_full_vocab"])


@torch.no_grad()
def test_a_padded_batch_equals_its_rows(
    backbone: OpenVLABackbone, observe: Observe, golden: Golden, samples: list[dict[str, Any]]
) -> None:
    rows = [backbone.prepare(observe(i)) for i in range(4)]
    text_BL, mask_BL = backbone.processor.tokenizer.batch([s["instruction"] for s in samples], 32000)
    assert not mask_BL.all()
    batch = PolicyInputs(torch.cat([row.pixels_BMCHW for row in rows]), text_BL, mask_BL, None)
    sample = backbone.act(batch, Sampling(), deterministic=True)
    for i in range(4):
        ids = sample.record["token"][i, 0] + backbone.network.first_action_id
        assert torch.equal(ids, golden[f"s{i}.generated_ids"])
        close(sample.logprob_BKA[i, 0], golden[f"s{i}.logprob_last256"])
        close(sample.value_B[i], backbone.value(rows[i])[0])
