from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.vla_policies.conftest import FLOW_CONVENTIONS
from vla_gym.errors import UnknownName
from vla_policies import ActionSample, VLAPolicy
from vla_policies.actions.sampling import Sampling
from vla_policies.checkpoint_io.json_records import to_json
from vla_policies.registry import family_class
from vla_policies.vlm_flow.backbone import VLMFlowBackbone

MakeFlow = Callable[..., VLMFlowBackbone]
Obs = dict[str, Tensor]
families = pytest.mark.parametrize("name", ["pi0", "pi05", "smolvla"])


def family_of(name: str) -> type[VLMFlowBackbone]:
    found = family_class(name)
    assert issubclass(found, VLMFlowBackbone)
    return found


@families
def test_the_plan_is_of_the_published_sizes_with_hashed_words(name: str) -> None:
    family = family_of(name)
    planned = family.planned_options({"num_steps": 4, "cache_features": 1.0, "horizon": 20, "cameras": ["image"]})
    assert (planned["flow"]["num_steps"], planned["cameras"]) == (4, ["image"])
    assert (planned["network"]["horizon"], planned["preprocessing"]["tokenizer"]) == (20, "words")
    full = to_json(family.config_of_size("full", 7))
    assert planned["network"] == {**full["network"], "horizon": 20}
    assert planned["learning"] == {**full["learning"], "cache_features": 1.0}
    assert family.planned_options({"size": "tiny", "delta_dims": 3}) == {"size": "tiny"}


@families
def test_options_say_whether_weights_are_fresh(name: str) -> None:
    family = family_of(name)
    assert not family.wants_fresh({"num_steps": 4})
    assert family.wants_fresh({"size": "tiny"})
    with pytest.raises(UnknownName, match=f"no size of {name} 'huge'"):
        family.fresh(FLOW_CONVENTIONS, {"size": "huge"})
    backbone = family.fresh(FLOW_CONVENTIONS, {"size": "tiny"})
    with torch.device("meta"):
        again = family.fresh(FLOW_CONVENTIONS, backbone.config_json())
    assert again.config == backbone.config
    assert [x.shape for x in again.parameters()] == [x.shape for x in backbone.parameters()]


def act(backbone: VLMFlowBackbone, obs: Obs, *, deterministic: bool = False) -> ActionSample:
    torch.manual_seed(2)
    with torch.no_grad():
        return backbone.act(backbone.prepare(obs), Sampling(), deterministic=deterministic)


@pytest.mark.parametrize("scheme", ["flow_sde", "flow_noise"])
@pytest.mark.parametrize(
    ("name", "feature"), [*product(("pi0", "pi05", "smolvla"), ("expert", "prefix")), ("smolvla", "state")]
)
def test_the_ratio_is_exactly_one_on_fresh_data(
    make_flow: MakeFlow, obs: Obs, name: str, feature: str, scheme: str
) -> None:
    backbone = make_flow(name, scheme=scheme, value_feature=feature, num_steps=3)
    sample = act(backbone, obs)
    backbone.train()
    result = backbone.evaluate(backbone.prepare(obs), sample.record, Sampling())
    assert torch.equal((result.logprob_BKA - sample.logprob_BKA).exp(), torch.ones(3, 4, 2))
    assert torch.equal(result.value_B, sample.value_B)
    assert torch.equal(backbone.value(backbone.prepare(obs)), sample.value_B)
    assert result.logprob_BKA.requires_grad


@families
def test_outputs_are_float32_under_autocast(make_flow: MakeFlow, obs: Obs, name: str) -> None:
    backbone = make_flow(name, scheme="flow_noise", num_steps=2)
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


@families
@pytest.mark.parametrize("key", ["image", "state", "instruction"])
def test_every_part_of_the_observation_matters(make_flow: MakeFlow, obs: Obs, name: str, key: str) -> None:
    backbone = make_flow(name)
    changed = {**obs, key: obs[key].roll(1, dims=0)}
    first, other = act(backbone, obs, deterministic=True), act(backbone, changed, deterministic=True)
    assert (first.record["chain"][:, -1] - other.record["chain"][:, -1]).abs().max() > 1e-4


@families
def test_rows_do_not_depend_on_their_batch(make_flow: MakeFlow, obs: Obs, name: str) -> None:
    backbone = make_flow(name)
    whole = act(backbone, obs, deterministic=True)
    for row in range(3):
        alone = act(backbone, {key: value[row : row + 1] for key, value in obs.items()}, deterministic=True)
        assert torch.allclose(alone.record["chain"][0], whole.record["chain"][row], atol=1e-5)
        assert torch.allclose(alone.value_B[0], whole.value_B[row], atol=1e-5)


@families
def test_weights_are_restored_in_place(
    make_flow: MakeFlow, obs: Obs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("vla_policies.checkpoint_io.weights.SHARD_BYTES", 200_000)
    backbone = make_flow(name)
    backbone.save(tmp_path, {"sampling": {}})
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    before, places = act(backbone, obs, deterministic=True), [p.data_ptr() for p in backbone.parameters()]
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.mul_(2.0)
    backbone.restore(tmp_path)
    assert [p.data_ptr() for p in backbone.parameters()] == places
    assert torch.equal(act(backbone, obs, deterministic=True).action_BKA, before.action_BKA)


@families
def test_stable_baselines3s_own_save_and_load(obs: Obs, tmp_path: Path, name: str) -> None:
    spaces = FLOW_CONVENTIONS.observation_space(), FLOW_CONVENTIONS.action_space()
    policy = VLAPolicy(*spaces, lambda _: 1e-3, backbone=name, backbone_kwargs={"size": "tiny", "num_steps": 2})
    policy.save(str(tmp_path / "policy.pth"))
    loaded = VLAPolicy.load(str(tmp_path / "policy.pth"), device="cpu")
    arrays = {key: value.numpy() for key, value in obs.items()}
    assert np.array_equal(loaded.predict(arrays, deterministic=True)[0], policy.predict(arrays, deterministic=True)[0])
