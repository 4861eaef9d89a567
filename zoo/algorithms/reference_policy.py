"""The reference policy of the KL term: the policy before reinforcement learning.

Reference
├── AdapterOff    the policy's own network with its LoRA adapter switched off: no second copy
└── FrozenCopy    a copy of what trains as it was before the first update, on the policy's device
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io.weights import check_tensors, read_safetensors
from vla_policies.modules.quantization import quantized_layers
from vla_policies.types import Evaluation
from zoo.config.algorithm_configs import ADAPTER_LACKING, KLReference
from zoo.runs.folder import REFERENCE_FILE


class Reference(ABC):
    """Scores decisions as the policy would have before training."""

    @abstractmethod
    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        """As `VLAPolicy.evaluate`, without gradients."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights that the policy does not hold into a checkpoint."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read the files of `save`."""


class AdapterOff(Reference):
    """The weights beneath the adapter, which is zero when training begins (`check_start`)."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    @torch.no_grad()
    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        with self._policy.backbone.adapter_off():
            result: Evaluation = self._policy.evaluate(obs, record)
        return result

    def save(self, folder: Path) -> None:
        """Nothing: training does not change the weights beneath the adapter."""

    def load(self, folder: Path) -> None:
        """Nothing, see `save`."""


class FrozenCopy(Reference):
    """Twice the weights that train in memory, and all of them in every checkpoint; frozen ones are the policy's own."""

    def __init__(self, policy: Any) -> None:
        optimizer, policy.optimizer = policy.optimizer, None
        frozen = [parameter for parameter in policy.parameters() if not parameter.requires_grad]
        codes = [code for layer in quantized_layers(policy).values() for code in layer.buffers()]
        try:
            self._policy = deepcopy(policy, dict[int, Any]({id(one): one for one in (*frozen, *codes)}))
        finally:
            policy.optimizer = optimizer
        self._policy.requires_grad_(False)
        self._policy.set_training_mode(False)

    @torch.no_grad()
    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        result: Evaluation = self._policy.evaluate(obs, record)
        return result

    def save(self, folder: Path) -> None:
        # Modules may hold a tensor under several names; safetensors requires separate memory for each.
        state = {name: tensor.detach().cpu().clone() for name, tensor in self._policy.state_dict().items()}
        save_file(state, folder / REFERENCE_FILE)

    def load(self, folder: Path) -> None:
        path = folder / REFERENCE_FILE
        if not path.is_file():
            raise BadValue(f"checkpoint '{folder}' lacks {REFERENCE_FILE}, which kl_reference='copy' needs")
        tensors = read_safetensors(path)
        check_tensors(path, tensors, self._policy.state_dict())
        self._policy.load_state_dict(tensors)


def check_reference(policy: Any, kind: str) -> None:
    """Raise unless `policy` has the reference that `kind` names."""
    if kind == "adapter_off" and not _has_adapter(policy):
        raise BadValue(ADAPTER_LACKING)


def check_start(policy: Any, kind: str) -> None:
    """Raise `BadValue` unless the reference that `kind` names is the policy as it is now, before its first update."""
    from vla_policies.modules.lora import is_zero

    if kind == "adapter_off" and not is_zero(policy.backbone):
        raise BadValue(
            "kl_reference='adapter_off' is the policy without its LoRA adapter, and this adapter was trained before "
            "(by zoo.sft, or by another run): its KL would be to the policy before that training. Set "
            "kl_reference='copy', or merge the adapter first (VLAPolicy.merge_adapter, save_pretrained) and attach a "
            "new one"
        )


def make_reference(policy: Any, kind: KLReference) -> Reference:
    """The reference of the policy as it is now."""
    return AdapterOff(policy) if kind == "adapter_off" else FrozenCopy(policy)


def _has_adapter(policy: Any) -> bool:
    backbone = getattr(policy, "backbone", None)
    return backbone is not None and bool(backbone.has_adapter)
