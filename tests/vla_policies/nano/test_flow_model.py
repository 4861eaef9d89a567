from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from vla_policies import Conventions
from vla_policies.actions.sampling import Sampling
from vla_policies.nano.flow_model import NanoFlowBackbone

MakeObs = Callable[..., dict[str, np.ndarray]]
OPTIONS = {"size": "tiny", "width": 32, "heads": 2}


def build(conventions: Conventions, **options: object) -> NanoFlowBackbone:
    torch.manual_seed(0)
    return NanoFlowBackbone.fresh(conventions, {**OPTIONS, **options})


def inputs_of(flow: NanoFlowBackbone, obs: dict[str, np.ndarray]):
    return flow.prepare({key: torch.from_numpy(value) for key, value in obs.items()})


def test_fresh_weights_act_with_the_asked_spread_and_value_nothing(conventions: Conventions, make_obs: MakeObs) -> None:
    flow = build(replace(conventions, chunk=8), initial_std=0.3, num_steps=50, noise_level=0.05)
    inputs = inputs_of(flow, make_obs(64))
    sample = flow.act(inputs, Sampling(), deterministic=False)
    assert sample.record["chain"][:, -1].std().item() == pytest.approx(0.3, rel=0.1)
    assert sample.value_B.abs().max() < 0.05
