"""The reference policy of the KL term: the policy before reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from vla_policies.checkpoint_io.weights import check_tensors, read_safetensors, write_safetensors
from vla_policies.modules.quantization import quantized_layers
from vla_policies.types import Evaluation
from zoo.config.algorithm_configs import KLReference
from zoo.runs.folder import REFERENCE_FILE


class Reference:
    """Scores decisions as the policy would have before training.

    "adapter_off": the policy's own network with its LoRA adapter, which is zero when training begins, switched off.
    "copy": a copy, on the policy's device, of what trains as it was at first; frozen weights are the policy's own.
    """

    def __init__(self, policy: VLAPolicy, kind: KLReference) -> None:
        self._copies = kind == "copy"
        self._policy = _frozen_copy(policy) if self._copies else policy

    @torch.no_grad()
    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        """Do as `VLAPolicy.evaluate`, without gradients."""
        with nullcontext() if self._copies else self._policy.backbone.adapter_off():
            return self._policy.evaluate(obs, record)

    def save(self, folder: Path) -> None:
        """Write the copy's weights, if there is one, into a checkpoint."""
        if self._copies:
            write_safetensors(folder / REFERENCE_FILE, self._policy.state_dict())

    def load(self, folder: Path) -> None:
        """Read the file of `save`."""
        if not self._copies:
            return
        path = folder / REFERENCE_FILE
        if not path.is_file():
            raise BadValue(f"checkpoint '{folder}' lacks {REFERENCE_FILE}, which kl_reference='copy' needs")
        tensors = read_safetensors(path)
        check_tensors(path, tensors, self._policy.state_dict())
        self._policy.load_state_dict(tensors)


def _frozen_copy(policy: Any) -> VLAPolicy:
    optimizer, policy.optimizer = policy.optimizer, None
    frozen = [parameter for parameter in policy.parameters() if not parameter.requires_grad]
    codes = [code for layer in quantized_layers(policy).values() for code in layer.buffers()]
    shared = (*frozen, *codes, policy.backbone.kept)
    try:
        copied: VLAPolicy = deepcopy(policy, dict[int, Any]({id(one): one for one in shared}))
    finally:
        policy.optimizer = optimizer
    copied.requires_grad_(False)
    copied.set_training_mode(False)
    return copied


def check_start(policy: VLAPolicy, kind: KLReference) -> None:
    """Raise `BadValue` unless the reference that `kind` names is the policy as it is now, before its first update."""
    from vla_policies.lora_backbone import is_zero  # brings peft

    if kind == "adapter_off" and not is_zero(policy.backbone):
        raise BadValue(
            "kl_reference='adapter_off' is the policy without its LoRA adapter, and this adapter was trained before "
            "(by vla-zoo sft, or by another run): its KL would be to the policy before that training. Set "
            "kl_reference='copy', or merge the adapter first (VLAPolicy.merge_adapter, save_pretrained) and attach a "
            "new one"
        )
