from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue, UnknownName
from vla_policies import Conventions, VLAPolicy
from vla_policies.actions.sampling import Sampling
from vla_policies.nano.flow_model import NanoFlowBackbone

MakeObs = Callable[..., dict[str, np.ndarray]]
MakePolicy = Callable[..., VLAPolicy]
OPTIONS = {"size": "tiny", "width": 32, "heads": 2}


def build(conventions: Conventions, **options: object) -> NanoFlowBackbone:
    torch.manual_seed(0)
    return NanoFlowBackbone.fresh(conventions, {**OPTIONS, **options})


def inputs_of(flow: NanoFlowBackbone, obs: dict[str, np.ndarray]):
    return flow.prepare({key: torch.from_numpy(value) for key, value in obs.items()})


def shift(flow: NanoFlowBackbone) -> None:
    """Off the start, where the head says almost nothing."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("scheme", ["flow_sde", "flow_noise"])
def test_the_ratio_is_exactly_one_on_fresh_data(conventions: Conventions, make_obs: MakeObs, scheme: str) -> None:
    flow = build(conventions, scheme=scheme)
    shift(flow)
    inputs = inputs_of(flow, make_obs(6))
    with torch.no_grad():
        sample = flow.act(inputs, Sampling(), deterministic=False)
    result = flow.evaluate(inputs, sample.record, Sampling())
    assert torch.equal((result.logprob_BKA - sample.logprob_BKA).exp(), torch.ones(6, 2, 4))
    assert torch.equal(result.value_B, sample.value_B)
    assert torch.equal(flow.value(inputs), sample.value_B)


@pytest.mark.parametrize("scheme", ["flow_sde", "flow_noise"])
def test_a_gradient_reaches_every_parameter(conventions: Conventions, make_obs: MakeObs, scheme: str) -> None:
    flow = build(conventions, scheme=scheme)
    shift(flow)
    inputs = inputs_of(flow, make_obs(4))
    result = flow.evaluate(inputs, flow.act(inputs, Sampling(), deterministic=False).record, Sampling())
    (result.logprob_BKA.sum() + result.value_B.sum()).backward()
    for name, parameter in flow.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("key", ["image", "wrist_image", "state", "instruction"])
def test_every_part_of_the_observation_matters(conventions: Conventions, make_obs: MakeObs, key: str) -> None:
    flow = build(conventions)
    shift(flow)
    obs, other = make_obs(3), make_obs(3, seed=1)
    other["instruction"] = obs["instruction"][[1, 2, 0]]
    changed = flow.act(inputs_of(flow, {**obs, key: other[key]}), Sampling(), deterministic=True)
    same = flow.act(inputs_of(flow, obs), Sampling(), deterministic=True)
    for part in ("action_BKA", "value_B"):
        assert (getattr(changed, part) - getattr(same, part)).abs().max() > 1e-4


def test_rows_do_not_depend_on_their_batch(conventions: Conventions, make_obs: MakeObs) -> None:
    flow = build(conventions)
    shift(flow)
    obs = make_obs(5)
    whole = flow.act(inputs_of(flow, obs), Sampling(), deterministic=True)
    for row in range(5):
        inputs = inputs_of(flow, {key: value[row : row + 1] for key, value in obs.items()})
        alone = flow.act(inputs, Sampling(), deterministic=True)
        assert torch.allclose(alone.action_BKA[0], whole.action_BKA[row], atol=1e-5)
        assert torch.allclose(alone.value_B[0], whole.value_B[row], atol=1e-5)


def test_fresh_weights_act_with_the_asked_spread_and_value_nothing(conventions: Conventions, make_obs: MakeObs) -> None:
    flow = build(replace(conventions, chunk=8), initial_std=0.3, num_steps=50, noise_level=0.05)
    inputs = inputs_of(flow, make_obs(64))
    sample = flow.act(inputs, Sampling(), deterministic=False)
    assert sample.record["chain"][:, -1].std().item() == pytest.approx(0.3, rel=0.1)
    assert sample.value_B.abs().max() < 0.05


@pytest.mark.parametrize("scheme", ["flow_sde", "flow_noise"])
def test_save_and_load(make_policy: MakePolicy, make_obs: MakeObs, tmp_path: Path, scheme: str) -> None:
    policy = make_policy(backbone="nano-flow", backbone_kwargs={**OPTIONS, "scheme": scheme, "num_steps": 3})
    shift(policy.backbone)
    policy.save_pretrained(tmp_path / "official")
    policy.save(str(tmp_path / "sb3.pth"))
    obs = make_obs(3)
    for loaded in (
        VLAPolicy.from_pretrained(tmp_path / "official", device="cpu"),
        VLAPolicy.load(str(tmp_path / "sb3.pth"), device="cpu"),
    ):
        assert loaded.backbone.config_json() == policy.backbone.config_json()
        assert np.array_equal(loaded.predict(obs, deterministic=True)[0], policy.predict(obs, deterministic=True)[0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shceme": "flow_sde"}, UnknownName, "'shceme'"),
        ({"scheme": "sde"}, UnknownName, "no scheme of backbone_kwargs of nano-flow 'sde'"),
        ({"trunk": {}}, BadValue, "lacks 'flow'"),
        ({"trunk": {}, "flo": {}}, UnknownName, "Did you mean 'flow'"),
    ],
)
def test_wrong_options_are_named(conventions: Conventions, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        NanoFlowBackbone.fresh(conventions, options)


def test_the_small_size_has_a_few_million_parameters() -> None:
    flow = NanoFlowBackbone.fresh(NanoFlowBackbone.default_conventions, {"size": "small"})
    assert 2e6 < sum(parameter.numel() for parameter in flow.parameters()) < 5e6
