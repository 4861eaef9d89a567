"""Between host and device; what a GPU would see is in `tests/emulated`."""

from __future__ import annotations

import pytest
import torch

from tests.vla_policies.conftest import tiny_policy
from vla_policies import VLAPolicy
from vla_policies.devices import built_for, download, for_gpu, upload

CPU = torch.device("cpu")


def test_what_lies_on_the_device_is_not_copied() -> None:
    x = torch.arange(3)
    assert upload(x, CPU) is x
    assert download([x])[0] is x


def vlm_dtypes(policy: VLAPolicy) -> set[torch.dtype]:
    """Types of the weights that see images and text."""
    return {parameter.dtype for parameter in policy.backbone.network.vlm.parameters()}  # type: ignore[union-attr]


def test_inside_is_what_was_said_and_outside_what_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    for sees in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda sees=sees: sees)
        assert for_gpu() is sees
        with built_for("cuda:1"):
            assert for_gpu()
            with built_for(torch.device("cpu")):
                assert not for_gpu()
            assert for_gpu()
        assert for_gpu() is sees


@pytest.mark.parametrize("family", ["pi0", "pi05", "smolvla"])
def test_a_frozen_vlm_is_half_precision_on_a_gpu_alone(family: str) -> None:
    with built_for("cuda"):
        on_gpu = tiny_policy(family, {"train_expert_only": True})
        asked = tiny_policy(family, {"train_expert_only": True, "vlm_dtype": "float32"})
        trained = tiny_policy(family, {"train_expert_only": False})
    with built_for("cpu"):
        on_cpu = tiny_policy(family, {"train_expert_only": True})
    assert vlm_dtypes(on_gpu) == {torch.bfloat16}
    assert vlm_dtypes(on_cpu) == vlm_dtypes(asked) == {torch.float32}
    assert {x.dtype for x in trained.parameters()} == {torch.float32}
    assert {x.dtype for x in on_gpu.parameters() if x.requires_grad} == {torch.float32}
