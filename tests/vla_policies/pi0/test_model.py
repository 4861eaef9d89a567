from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from vla_gym.errors import BadValue, UnknownName
from vla_policies import VLAPolicy
from vla_policies.actions.sampling import Sampling
from vla_policies.pi0.model import Pi0Backbone
from vla_policies.registry import family_class

from .conftest import CONVENTIONS, Golden

MakeBackbone = Callable[..., Pi0Backbone]
Obs = dict[str, Tensor]
FAMILIES = ("pi0", "pi05")


def act(backbone: Pi0Backbone, obs: Obs, *, deterministic: bool = False):
    torch.manual_seed(2)
    with torch.no_grad():
        return backbone.act(backbone.prepare(obs), Sampling(), deterministic=deterministic)


@pytest.mark.parametrize("scheme", ["flow_sde", "flow_cps", "flow_noise"])
@pytest.mark.parametrize("feature", ["expert", "prefix"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_ratio_is_exactly_one_on_fresh_data(
    make_backbone: MakeBackbone, obs: Obs, family: str, feature: str, scheme: str
) -> None:
    backbone = make_backbone(family, scheme=scheme, value_feature=feature, num_steps=3)
    sample = act(backbone, obs)
    backbone.train()
    result = backbone.evaluate(backbone.prepare(obs), sample.record, Sampling())
    assert torch.equal((result.logprob_BKA - sample.logprob_BKA).exp(), torch.ones(3, 4, 2))
    assert torch.equal(result.value_B, sample.value_B)
    assert torch.equal(backbone.value(backbone.prepare(obs)), sample.value_B)
    assert result.logprob_BKA.requires_grad


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_float32_under_autocast(make_backbone: MakeBackbone, obs: Obs, family: str) -> None:
    backbone = make_backbone(family, scheme="flow_noise", num_steps=2)
    inputs = backbone.prepare(obs)
    with torch.autocast("cpu", torch.bfloat16):
        sample = act(backbone, obs)
        result = backbone.evaluate(inputs, sample.record, Sampling())
        denoised = backbone.denoise(backbone.encode(inputs), sample.record["chain"][:, 0], torch.ones(3))
        std_BHD = backbone.learned_std(denoised.hidden_BHE)
        value_B = backbone.value(inputs)
    for tensor in (sample.logprob_BKA, sample.value_B, result.logprob_BKA, result.entropy_BKA, value_B):
        assert tensor.dtype == torch.float32
    for tensor in (denoised.velocity_BHD, denoised.hidden_BHE, std_BHD):
        assert tensor.dtype == torch.float32
    # A bfloat16 number is a multiple of 2^-8 of its size: of a float32 head's, few can be.
    assert not torch.equal(value_B, value_B.bfloat16().float())


def test_the_golden_checkpoints_decide_and_score_alike(golden: Golden) -> None:
    inputs = golden.rows(0, 1, 2, cameras=3)
    torch.manual_seed(0)
    with torch.no_grad():
        sample = golden.backbone.act(inputs, Sampling(), deterministic=False)
    result = golden.backbone.evaluate(inputs, sample.record, Sampling())
    assert torch.equal(result.logprob_BKA, sample.logprob_BKA)
    assert torch.equal(result.value_B, sample.value_B)
    assert sample.value_B.abs().max() < 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_expert_is_trained(make_backbone: MakeBackbone, obs: Obs, family: str) -> None:
    backbone = make_backbone(family)
    result = backbone.evaluate(backbone.prepare(obs), act(backbone, obs).record, Sampling())
    (result.logprob_BKA.sum() + result.value_B.sum()).backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad == (not name.startswith("network.vlm.")), name
        assert (parameter.grad is not None) == parameter.requires_grad, name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vlm_can_be_trained_too(make_backbone: MakeBackbone, obs: Obs, family: str) -> None:
    backbone = make_backbone(family, train_expert_only=False, recompute_activations=True)
    result = backbone.evaluate(backbone.prepare(obs), act(backbone, obs).record, Sampling())
    result.logprob_BKA.sum().backward()
    # The last layer only gives keys and values, or feeds the critic, whose gradient stops before it.
    first = backbone.network.vlm.layers[0].mlp.up_proj.weight.grad  # type: ignore[union-attr]
    assert first is not None
    assert first.abs().max() > 0
    assert backbone.network.vlm.vision_tower.embeddings.patch_embedding.weight.grad.abs().max() > 0


@pytest.mark.parametrize("feature", ["expert", "prefix"])
@pytest.mark.parametrize("detach", [True, False])
def test_the_critics_gradient_stops_where_asked(
    make_backbone: MakeBackbone, obs: Obs, feature: str, detach: bool
) -> None:
    backbone = make_backbone("pi0", value_feature=feature, detach_value=detach, train_expert_only=False)
    backbone.value(backbone.prepare(obs)).sum().backward()
    reached = {
        name.split(".")[1] for name, p in backbone.named_parameters() if p.grad is not None and "network" in name
    }
    assert backbone.value_head.mlp[0].weight.grad is not None
    assert ("vlm" in reached) == (not detach)
    assert ("expert" in reached) == (not detach and feature == "expert")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key", ["image", "state", "instruction"])
def test_every_part_of_the_observation_matters(make_backbone: MakeBackbone, obs: Obs, family: str, key: str) -> None:
    backbone = make_backbone(family)
    changed = {**obs, key: obs[key].roll(1, dims=0)}
    first, other = act(backbone, obs, deterministic=True), act(backbone, changed, deterministic=True)
    assert (first.record["chain"][:, -1] - other.record["chain"][:, -1]).abs().max() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_do_not_depend_on_their_batch(make_backbone: MakeBackbone, obs: Obs, family: str) -> None:
    backbone = make_backbone(family)
    whole = act(backbone, obs, deterministic=True)
    for row in range(3):
        alone = act(backbone, {key: value[row : row + 1] for key, value in obs.items()}, deterministic=True)
        assert torch.allclose(alone.record["chain"][0], whole.record["chain"][row], atol=1e-5)
        assert torch.allclose(alone.value_B[0], whole.value_B[row], atol=1e-5)


def test_a_frozen_vlm_may_be_in_half_precision(make_backbone: MakeBackbone, obs: Obs) -> None:
    plain, half = make_backbone("pi0"), make_backbone("pi0", vlm_dtype="bfloat16")
    assert {p.dtype for p in half.network.vlm.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in half.network.expert.parameters()} == {torch.float32}
    first, other = act(plain, obs, deterministic=True), act(half, obs, deterministic=True)
    assert other.record["chain"].dtype == torch.float32
    difference = (first.record["chain"] - other.record["chain"]).abs().max()
    assert 0 < difference < 0.1


@pytest.mark.parametrize("scheme", ["flow_sde", "flow_noise"])
def test_round_trip(golden: Golden, tmp_path: Path, scheme: str) -> None:
    settings = {"backbone_kwargs": {"scheme": scheme, "num_steps": 2}}
    policy = VLAPolicy.from_pretrained(golden.folder, device="cpu", **settings)  # type: ignore[arg-type]
    policy.save_pretrained(tmp_path)
    loaded = VLAPolicy.from_pretrained(tmp_path, device="cpu")
    assert loaded.backbone.config_json() == policy.backbone.config_json()
    assert loaded.conventions == policy.conventions
    inputs = golden.rows(0, 1, 2, cameras=2)
    results = [p.backbone.act(inputs, Sampling(), deterministic=True) for p in (policy, loaded)]
    for name in ("action_BKA", "logprob_BKA", "value_B"):
        assert torch.equal(getattr(results[0], name), getattr(results[1], name))
    # What one scheme trained may be opened with the other, whose noise head then is new.
    again = VLAPolicy.from_pretrained(tmp_path, device="cpu", backbone_kwargs={"scheme": "flow_noise"})
    assert isinstance(again.backbone, Pi0Backbone)
    assert again.backbone.noise_head is not None


def test_weights_are_restored_in_place(
    make_backbone: MakeBackbone, obs: Obs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vla_policies.checkpoint_io.weights.SHARD_BYTES", 200_000)
    backbone = make_backbone("pi0")
    backbone.save(tmp_path, {})
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    before, places = act(backbone, obs, deterministic=True), [p.data_ptr() for p in backbone.parameters()]
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.mul_(2.0)
    backbone.restore(tmp_path)
    assert [p.data_ptr() for p in backbone.parameters()] == places
    assert torch.equal(act(backbone, obs, deterministic=True).action_BKA, before.action_BKA)


def test_stable_baselines3s_own_save_and_load(obs: Obs, tmp_path: Path) -> None:
    spaces = CONVENTIONS.observation_space(), CONVENTIONS.action_space()
    policy = VLAPolicy(*spaces, lambda _: 1e-3, backbone="pi0", backbone_kwargs={"size": "tiny", "num_steps": 2})
    policy.save(str(tmp_path / "policy.pth"))
    loaded = VLAPolicy.load(str(tmp_path / "policy.pth"), device="cpu")
    arrays = {key: value.numpy() for key, value in obs.items()}
    assert np.array_equal(loaded.predict(arrays, deterministic=True)[0], policy.predict(arrays, deterministic=True)[0])


def test_bare_names_stand_for_published_checkpoints() -> None:
    for family in FAMILIES:
        found = family_class(family)
        assert found.published == f"lerobot/{family}_base"
        assert not found.wants_fresh({"num_steps": 4})
        assert found.wants_fresh({"size": "tiny"})


def test_wrong_options_are_named() -> None:
    with pytest.raises(UnknownName, match="no size of pi0 'huge'"):
        Pi0Backbone.fresh(CONVENTIONS, {"size": "huge"})
    with pytest.raises(UnknownName, match="Did you mean 'num_steps'"):
        Pi0Backbone.fresh(CONVENTIONS, {"size": "tiny", "num_step": 3})
    with pytest.raises(BadValue, match="'pi0' reads the robot's state"):
        Pi0Backbone.fresh(replace(CONVENTIONS, state_dim=0), {"size": "tiny"})
    with pytest.raises(BadValue, match="predicts 10 actions"):
        Pi0Backbone.fresh(replace(CONVENTIONS, chunk=11), {"size": "tiny"})
