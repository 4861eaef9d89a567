"""The contract of every family, on tiny random weights: acting and scoring agree, folders and adapters come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.vla_policies.conftest import tiny_policy
from vla_gym import find_benchmark
from vla_gym.observation import encode_instruction
from vla_policies import VLAPolicy
from vla_policies.processing.observations import batch_observation
from vla_policies.types import ActionSample

LORA = {"lora": {"rank": 4}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "nano": ("nano", {}),
    "nano, its own critic": ("nano", {"critic": "own"}),
    "nano, words": ("nano", {"words": "wordllama"}),
    "nano-flow": ("nano-flow", {}),
    "nano-flow, noise": ("nano-flow", {"scheme": "flow_noise"}),
    "openvla": ("openvla", {}),
    "openvla, adapter": ("openvla", LORA),
    "oft": ("openvla-oft", {}),
    "oft, adapter": ("openvla-oft", LORA),
    "pi0": ("pi0", {}),
    "pi0, noise, prefix": ("pi0", {"scheme": "flow_noise", "value_feature": "prefix"}),
    "pi05": ("pi05", {"value_feature": "expert"}),
    "pi05, noise": ("pi05", {"scheme": "flow_noise"}),
    "smolvla": ("smolvla", {}),
    "smolvla, noise, expert": ("smolvla", {"scheme": "flow_noise", "value_feature": "expert"}),
    "smolvla, adapter": ("smolvla", {**LORA, "value_feature": "prefix"}),
}
FURTHER = ("nano, its own critic", "nano-flow, noise", "oft, adapter", "pi0, noise, prefix", "pi05", "pi05, noise")
"""What others show, too, where neither scores nor gradients are compared."""


def thorough(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.thorough) if name in FURTHER else name for name in names]


every = pytest.mark.parametrize("name", CASES)
most = pytest.mark.parametrize("name", thorough(CASES))
each_family = pytest.mark.parametrize("name", ["nano", "nano-flow", "openvla", "oft", "pi0", "pi05", "smolvla"])
adapted = pytest.mark.parametrize("name", thorough(name for name in CASES if name.endswith("adapter")))


def build(name: str, options: Mapping[str, Any] | None = None) -> VLAPolicy:
    """A policy whose weights are moved off their start."""
    family, own = CASES[name]
    policy = tiny_policy(family, {**own, **(options or {})})
    move(policy)
    return policy


@torch.no_grad()
def move(policy: VLAPolicy) -> None:
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.add_(0.05 * torch.randn_like(parameter))


def observations(policy: VLAPolicy) -> dict[str, Any]:
    """Three observations, sentences of different lengths."""
    rng, conventions = np.random.default_rng(0), policy.conventions
    side = conventions.image_size
    return {
        "image": rng.integers(0, 256, (3, side, side, 3), dtype=np.uint8),
        "state": rng.uniform(-1, 1, (3, 3)).astype(np.float32),
        "instruction": ["reach the red block", "put the bowl on the plate, please", "open"],
    }


def decided(policy: VLAPolicy, obs: dict[str, Any] | None = None) -> Tensor:
    """Everything of a deterministic decision, `[B, numbers]`."""
    sample = policy.act(observations(policy) if obs is None else obs, deterministic=True)
    chain = sample.record.get("chain", sample.logprob_BKA)
    return torch.cat([sample.action_BKA.flatten(1), chain.flatten(1), sample.value_B[:, None]], dim=1)


def scores(policy: VLAPolicy, sample: ActionSample) -> Tensor:
    result = policy.evaluate(observations(policy), sample.record)
    return torch.cat([result.logprob_BKA.flatten(), result.entropy_BKA.flatten(), result.value_B])


def gradients(policy: VLAPolicy, sample: ActionSample) -> dict[str, Tensor | None]:
    policy.zero_grad()
    scores(policy, sample).sum().backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.requires_grad}


@every
def test_a_decision_scored_again_has_a_ratio_of_exactly_one(name: str) -> None:
    policy = build(name)
    obs = observations(policy)
    sample = policy.act(obs)
    policy.set_training_mode(True)
    result = policy.evaluate(obs, sample.record)
    assert torch.equal(result.logprob_BKA, sample.logprob_BKA)
    torch.testing.assert_close(result.value_B, sample.value_B, rtol=0, atol=1e-6)
    assert sample.action_BKA.abs().max() <= 1
    assert result.logprob_BKA.shape == (3, policy.conventions.chunk, 4) == result.entropy_BKA.shape
    for tensor in (sample.action_BKA, sample.value_B, result.logprob_BKA, result.entropy_BKA, result.value_B):
        assert tensor.dtype == torch.float32


@every
def test_all_that_trains_gets_a_gradient_also_where_activations_are_computed_again(name: str) -> None:
    policy = build(name)
    sample = policy.act(observations(policy))
    plain = gradients(policy, sample)
    assert [key for key, gradient in plain.items() if gradient is None] == []
    option = policy.backbone.recompute_option
    if option is not None:
        again = gradients(build(name, options={option: True}), sample)
        for key, gradient in plain.items():
            torch.testing.assert_close(again[key], gradient, rtol=1e-5, atol=1e-6)


@each_family
def test_every_part_of_the_observation_matters(name: str) -> None:
    policy = build(name)
    obs = observations(policy)
    for key in ("image", "instruction", *(["state"] if policy.conventions.state_dim else [])):
        turned = obs[key][1:] + obs[key][:1] if key == "instruction" else np.roll(obs[key], 1, axis=0)
        assert (decided(policy, {**obs, key: turned}) - decided(policy)).abs().max() > 1e-5


@each_family
def test_rows_do_not_depend_on_their_batch(name: str) -> None:
    policy = build(name)
    obs = observations(policy)
    whole = decided(policy)
    for row in range(3):
        alone = decided(policy, {key: value[row : row + 1] for key, value in obs.items()})
        torch.testing.assert_close(alone[0], whole[row], rtol=0, atol=1e-4)


@each_family
def test_autocast_leaves_scores_and_values_in_float32(name: str) -> None:
    policy = build(name)
    with torch.autocast("cpu", torch.bfloat16):
        sample = policy.act(observations(policy))
        found = scores(policy, sample)
    assert found.dtype == sample.logprob_BKA.dtype == torch.float32
    if not name.startswith("nano"):
        # A bfloat16 number is a multiple of 2^-8 of its size: of a float32 head's, few can be.
        assert not torch.equal(sample.value_B, sample.value_B.bfloat16().float())


@most
def test_a_folder_opens_as_it_was_saved(name: str, tmp_path: Path) -> None:
    policy = build(name)
    policy.save_pretrained(tmp_path)
    assert ".lora_" not in " ".join(load_file(tmp_path / "model.safetensors"))
    opened = VLAPolicy.from_pretrained(tmp_path, device="cpu")
    assert opened.backbone.family == policy.backbone.family
    assert opened.conventions.chunk == policy.conventions.chunk
    # Merging an adapter rounds.
    atol = 1e-4 if policy.backbone.has_adapter else 0
    torch.testing.assert_close(decided(opened), decided(policy), rtol=0, atol=atol)


@most
def test_weights_are_restored_in_place(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_policies.checkpoint_io.weights.SHARD_BYTES", 200_000)
    policy = build(name)
    policy.save_trained(tmp_path)
    wanted, places = decided(policy), [parameter.data_ptr() for parameter in policy.parameters()]
    move(policy)
    assert not torch.equal(decided(policy), wanted)
    policy.backbone.restore(tmp_path)
    assert [parameter.data_ptr() for parameter in policy.parameters()] == places
    assert torch.equal(decided(policy), wanted)


@most
def test_stable_baselines3s_own_save_and_load(name: str, tmp_path: Path) -> None:
    policy = build(name)
    policy.save(str(tmp_path / "policy.pth"))
    loaded = VLAPolicy.load(str(tmp_path / "policy.pth"), device="cpu")
    assert torch.equal(decided(loaded), decided(policy))


@adapted
def test_an_adapter_trains_alone_and_is_switched_off_and_merged(name: str) -> None:
    policy = build(name)
    backbone = policy.backbone
    trained = {key for key, parameter in policy.named_parameters() if parameter.requires_grad}
    assert all(".lora_" in key or key.startswith(("backbone.value_head", "backbone.noise_head")) for key in trained)
    assert sum(len(group["params"]) for group in policy.optimizer.param_groups) == len(trained)
    wanted = decided(policy)
    with backbone.adapter_off():
        assert not torch.equal(decided(policy), wanted)
    assert {key for key, parameter in policy.named_parameters() if parameter.requires_grad} == trained
    assert torch.equal(decided(policy), wanted)
    policy.merge_adapter()
    assert not backbone.has_adapter
    torch.testing.assert_close(decided(policy), wanted, rtol=0, atol=1e-4)
    in_groups = sum(len(group["params"]) for group in policy.optimizer.param_groups)
    assert in_groups == sum(parameter.requires_grad for parameter in policy.parameters()) > len(trained) / 2


@adapted
def test_an_adapter_alone_opens_over_its_base(name: str, tmp_path: Path) -> None:
    family, options = CASES[name]
    base = build(name.removesuffix(", adapter"), options={key: options[key] for key in options if key != "lora"})
    base.save_pretrained(tmp_path / "base")
    torch.manual_seed(1)
    policy = VLAPolicy.from_pretrained(tmp_path / "base", backbone_kwargs=LORA, device="cpu")
    torch.testing.assert_close(decided(policy), decided(base), rtol=0, atol=1e-6)
    move(policy)
    policy.save_adapter(tmp_path / "adapter")
    opened = VLAPolicy.from_pretrained(tmp_path / "adapter", device="cpu")
    assert opened.backbone.family == family
    assert torch.equal(decided(opened), decided(policy))


@adapted
def test_fresh_weights_are_kept_apart_from_their_adapter(name: str, tmp_path: Path) -> None:
    policy = build(name)
    policy.save_trained(tmp_path / "first")
    opened = VLAPolicy.from_pretrained(tmp_path / "first", device="cpu")
    opened.save_trained(tmp_path / "second")  # as a run does that went on, its first folder gone
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    again = VLAPolicy.from_pretrained(tmp_path / "second", device="cpu")
    assert torch.equal(decided(opened), decided(policy))
    assert torch.equal(decided(again), decided(policy))
    assert len(again.optimizer.param_groups[0]["params"]) == len(policy.optimizer.param_groups[0]["params"])


@pytest.mark.sim  # reads LIBERO-Plus's files
@each_family
def test_every_word_of_a_reworded_instruction_reaches_the_tokens(name: str) -> None:
    policy = build(name)
    (task,) = find_benchmark("LIBERO-Spatial-Plus-language/0").tasks
    words = task.instruction.split()
    assert len(words) == 32
    assert words[:4] == ["grasp", "the", "darkhued", "rounded"]
    other = [" ".join([*words[:place], "zebra", *words[place + 1 :]]) for place in range(len(words))]
    sentences = [task.instruction, *other]
    obs = {
        "image": np.zeros((len(sentences), 56, 56, 3), np.uint8),
        "state": np.zeros((len(sentences), 3), np.float32),
        "instruction": np.stack([encode_instruction(sentence) for sentence in sentences]),
    }
    inputs, _ = batch_observation(obs, policy.conventions)
    rows = policy.backbone.prepare(inputs).text_BL.tolist()
    assert len({tuple(row) for row in rows}) == 1 + len(words)


@pytest.mark.parametrize("name", ["nano", "openvla", "oft"])
def test_stable_baselines3s_methods_agree_with_ours(name: str) -> None:
    policy = build(name)
    obs = policy.obs_to_tensor(observations(policy))[0]
    chunk = policy.conventions.chunk
    with torch.no_grad():
        actions, values, log_prob = policy(obs)
        assert (actions.shape, values.shape, log_prob.shape) == ((3, chunk, 4), (3, 1), (3,))
        # Stable-Baselines3's buffer stores flat env actions; the tokens must come back exactly.
        again_values, again_log_prob, entropy = policy.evaluate_actions(obs, actions.flatten(1))
        assert torch.equal(again_log_prob, log_prob)
        assert torch.equal(again_values, values)
        torch.testing.assert_close(policy.predict_values(obs), values, rtol=0, atol=1e-5)
        assert entropy is not None
        assert (entropy > 0).all()
        distribution = policy.get_distribution(obs)
        assert torch.equal(distribution.log_prob(actions), log_prob)
        assert torch.equal(distribution.mode(), policy._predict(obs, deterministic=True))
        if name == "openvla":  # which token follows depends on those before, so that of all no entropy is known
            assert distribution.entropy() is None
        else:
            torch.testing.assert_close(distribution.entropy(), entropy)


def test_later_tokens_of_openvla_depend_on_those_before() -> None:
    policy = build("openvla")
    obs = observations(policy)
    token = policy.act(obs).record["token"]
    other = token.clone()
    other[..., 0] = (other[..., 0] + 100) % 256
    first, second = (policy.evaluate(obs, {"token": one}).logprob_BKA for one in (token, other))
    assert not torch.allclose(first[..., 1], second[..., 1])
