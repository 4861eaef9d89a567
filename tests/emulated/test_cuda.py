"""The cases of the emulated device on a real one: what the CPU computes, one wait of the host for each decision.

`pytest -m gpu` on a machine with a CUDA device; the counts and budgets of kernels are `test_emulated_device.py`'s.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulated_cases import FAMILIES, LORA, TINY, VARIANTS, act_and_update, is_restored, make_policy, make_ppo
from emulated_cases import observations as tiny_observations

from vla_gym.observation import encode_instruction
from vla_policies import VLAPolicy
from vla_policies.actions.noise import SlotNoise
from vla_policies.devices import built_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DECIDED = 5
"""Of the numbers of a run: actions, log-probabilities and values acted, the latter two again evaluated."""
CLOSE = 1e-4
"""Of float32 sums in another order."""
STEP = 1e-3
"""Of the optimiser, which moves a weight by as much where its gradient is next to nothing, to one side or the other."""
UNNORM_KEYS = {"openvla_tiny": "libero_spatial", "openvla_oft_tiny": "libero_spatial_no_noops"}


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's convolutions round their inputs to ten bits unless they are told not to."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@contextmanager
def waits() -> Iterator[list[str]]:
    """Places at which the host waited for the device, `file:line`, as CUDA's own check finds them."""
    places: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = [one for one in caught if "called a synchronizing CUDA operation" in str(one.message)]
    places += [f"{Path(one.filename).name}:{one.lineno}" for one in found]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_policy_computes_as_on_the_cpu_and_waits_once(name: str) -> None:
    family, options = VARIANTS[name]
    with built_for("cpu"):  # in float32; what acts in bfloat16 is rounded otherwise by every kernel
        policy = make_policy(family, options)
    obs = tiny_observations(2, one_length=name in FAMILIES)
    beside = copy.deepcopy(policy)
    policy.to("cuda")
    for one in (policy, beside):
        one._build(lambda _: STEP)
    run, expected = act_and_update(policy, obs, waits), act_and_update(beside, obs)
    gaps = [
        (a.detach().cpu().float() - b.detach().float()).abs()
        for a, b in zip(run.numbers, expected.numbers, strict=True)
    ]
    decided, weights = gaps[:DECIDED], torch.cat([gap.flatten() for gap in gaps[DECIDED:]])
    assert max(float(gap.max()) for gap in decided) <= CLOSE, [float(gap.max()) for gap in decided]
    assert float(weights.max()) <= 2.1 * STEP
    assert float((weights > 0.1 * STEP).float().mean()) <= 0.01
    assert run.ratio_gap <= 1e-5
    assert is_restored(policy, obs, "cuda")
    assert [len(places) for places in run.counts] == [1, 0, 0], run.counts


@pytest.mark.parametrize(
    "name", ["openvla_tiny", "openvla_oft_tiny", "pi0_tiny", "pi05_tiny", "smolvla_tiny/checkpoint"]
)
def test_a_published_layout_decides_as_on_the_cpu(golden_root: Path, name: str) -> None:
    """On the CPU these folders give the numbers of their originals (`test_golden.py` of each family)."""
    found = []
    for device in ("cuda", "cpu"):
        torch.manual_seed(0)  # the published folders have no critic; a fresh one is drawn
        policy = VLAPolicy.from_pretrained(
            golden_root / name, device=device, dtype="float32", unnorm_key=UNNORM_KEYS.get(name)
        )
        own = policy.conventions
        rng = np.random.default_rng(0)
        shape = (2, own.image_size, own.image_size, 3)
        obs: dict[str, Any] = {camera: rng.integers(0, 256, shape, dtype=np.uint8) for camera in own.cameras}
        obs["state"] = rng.normal(size=(2, own.state_dim)).astype(np.float32)
        obs["instruction"] = np.stack([encode_instruction("put the bowl on the plate")] * 2)
        sample = policy.act(obs, noise=SlotNoise(0, (0, 0), np.arange(2)))
        result = policy.evaluate(obs, sample.record)
        found.append([sample.action_BKA, sample.logprob_BKA, result.logprob_BKA, result.entropy_BKA, result.value_B])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here.detach().cpu().float(), there.detach().float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "options", "settings"),
    [
        ("nano", FAMILIES["nano"], {"micro_batch_size": 4}),
        ("nano-flow", FAMILIES["nano-flow"], {}),
        ("openvla-oft", {**TINY, "lora": LORA, "dtype": "float32"}, {"kl_coef": 0.1}),
    ],
)
def test_a_rollout_and_its_update_are_those_of_the_cpu(family: str, options: dict[str, Any], settings: Any) -> None:
    weights = []
    for device in ("cuda", "cpu"):
        model = make_ppo(family, options, settings, device)
        model.learn(1)
        weights.append([parameter.detach().cpu() for parameter in model.policy.parameters()])
    gap = torch.cat([(a - b).abs().flatten() for a, b in zip(*weights, strict=True)])
    assert float((gap > CLOSE).float().mean()) <= 0.01, float(gap.max())
