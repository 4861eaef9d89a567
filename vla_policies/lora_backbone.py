"""Families whose policies low-rank adapters (LoRA, arXiv:2106.09685) may train, through peft: attached, merged, saved
alone, loaded, switched off.

Adapter folders are plain peft's (`adapter_config.json`, `adapter_model.safetensors`), so they load with
`peft.PeftModel.from_pretrained` on the published model, and adapters made elsewhere load here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_policies.backbone import Backbone
from vla_policies.checkpoint_io.folder import ADAPTER_CONFIG, write_json
from vla_policies.checkpoint_io.weights import check_tensors, read_safetensors, write_safetensors
from vla_policies.modules.fused_lora import fuse
from vla_policies.modules.lora_config import LoraSettings, adapter_settings
from vla_policies.modules.quantization import plain_state
from vla_policies.modules.training import without_autocast

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_NAME = "default"
_PREFIX = "base_model.model."
"""peft's prefix of every key."""


class LoraBackbone(Backbone):
    """Families whose policies LoRA adapters may train; subclasses say which module takes them, and read and write what
    lies beside them."""

    lora_targets: ClassVar[tuple[str, ...] | str]
    """Layers with an adapter where the settings name none."""

    @property
    @abstractmethod
    def adapted(self) -> nn.Module:
        """The module that takes adapters."""

    @abstractmethod
    def set_lora(self, settings: LoraSettings | None) -> None:
        """Change the setting, from which Stable-Baselines3's `load` builds the network again."""

    @abstractmethod
    def load_beside(self, folder: Path) -> None:
        """Read the critic and the heads beside an adapter, in place; those that the folder lacks keep their weights."""

    @abstractmethod
    def save_beside(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Write the critic, the heads and the settings that the folder of an adapter keeps beside it."""

    @abstractmethod
    def finish(self) -> None:
        """With weights in place: freeze what does not train, drop what was kept of earlier weights."""

    def attach_lora(self) -> None:
        """With weights in place: attach adapters where set, and `finish`."""
        if self.lora is not None and not self.has_adapter:
            attach(self.adapted, self.lora, self.lora_targets)
        self.finish()

    @property
    def has_adapter(self) -> bool:
        return is_attached(self.adapted)

    def save_adapter(self, folder: Path, config: Mapping[str, Any], base: str) -> None:
        found = getattr(self.adapted, "peft_config", {}).get(_NAME)
        if found is None:
            raise BadValue("the policy has no LoRA adapter to save; attach one with backbone_kwargs lora: {rank: 32}")
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            **{key: _plain(value) for key, value in found.to_dict().items()},
            "base_model_name_or_path": base,
            "revision": self.source_revision if base == self.source else None,
            "inference_mode": True,
        }
        write_safetensors(folder / ADAPTER_WEIGHTS, _adapter_state(self.adapted))
        write_json(folder / ADAPTER_CONFIG, values, sort_keys=True)
        self.save_beside(folder, config)

    def load_adapter(self, folder: Path) -> None:
        _inject(self.adapted, LoraConfig(**adapter_settings(folder, LoraConfig.__dataclass_fields__)))
        self.set_lora(_settings_of(getattr(self.adapted, "peft_config", {})[_NAME]))
        self.restore(folder)

    def restore(self, folder: Path) -> None:
        """As the base class's; of a policy with an adapter, from the adapter's folder."""
        if not self.has_adapter:
            super().restore(folder)
            return
        path = folder / ADAPTER_WEIGHTS
        if not path.is_file():
            raise BadValue(f"adapter folder '{folder}' lacks {ADAPTER_WEIGHTS}")
        tensors, state = read_safetensors(path), self.adapted.state_dict()
        # peft also writes the weight of an adapted output layer: the base's, or trained with the adapter.
        extra = {key: state[name] for key in tensors if (name := key.removeprefix(_PREFIX)) in state}
        wanted = {**_adapter_state(self.adapted), **extra}
        check_tensors(path, tensors, wanted)
        with torch.no_grad():
            for key, tensor in wanted.items():
                tensor.copy_(tensors[key])
        self.load_beside(folder)
        self.finish()

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """As the base class's; which parameters train is the same before and after."""
        layers = [layer for layer in self.adapted.modules() if isinstance(layer, LoraLayer)]
        trains = {parameter: parameter.requires_grad for parameter in self.adapted.parameters()}
        self.adapters_on = False
        try:
            for layer in layers:
                layer.enable_adapters(False)
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)
            # peft sets `requires_grad` by its own rule.
            for parameter, trained in trains.items():
                parameter.requires_grad_(trained)
            self.adapters_on = True

    def merge_adapter(self) -> None:
        for name, layer in list(self.adapted.named_modules()):
            if isinstance(layer, LoraLayer):
                layer.merge()
                parent, _, last = name.rpartition(".")
                setattr(self.adapted.get_submodule(parent), last, layer.get_base_layer())
        vars(self.adapted).pop("peft_config", None)
        self.set_lora(None)
        self.finish()


def attach(module: nn.Module, settings: LoraSettings, targets: tuple[str, ...] | str) -> None:
    """Put an adapter beside every target layer of `module`, in place, and freeze everything else.

    An adapter starts as no change (B = 0) and is float32 for any dtype of the weights.
    """
    chosen = settings.targets or targets
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.scale_alpha,
        lora_dropout=0.0,
        init_lora_weights="gaussian",
        target_modules=chosen if isinstance(chosen, str) else list(chosen),
    )
    _inject(module, config)


def is_attached(module: nn.Module) -> bool:
    """Whether any layer has an adapter."""
    return any(isinstance(layer, LoraLayer) for layer in module.modules())


def is_zero(module: nn.Module) -> bool:
    """Whether the adapters change no layer's output yet: every B, or every A, is zero."""
    layers = [layer for layer in module.modules() if isinstance(layer, LoraLayer)]
    pairs = [(layer.lora_A[name].weight, layer.lora_B[name].weight) for layer in layers for name in layer.lora_A]
    # One question for all of them: a GPU would be waited for at each.
    changes = [(a.any() & b.any()).to(pairs[0][0].device) for a, b in pairs]
    return not changes or not bool(torch.stack(changes).any())


@torch.no_grad()
def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict as if merged, under the names of the plain module; `module` does not change.

    Adapters that are switched off are left out. Merged weights are on the CPU: a GPU may not hold them twice.
    """
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}
    state = {}
    for key, tensor in plain_state(module).items():
        if ".lora_" in key:
            continue
        owner = key.split(".base_layer.")[0]
        if ".base_layer." in key and key.endswith(".weight") and not layers[owner].disable_adapters:
            delta = layers[owner].get_delta_weight(_NAME)
            tensor = (tensor.float() + delta.to(tensor.device, torch.float32)).to(tensor.dtype).cpu()
        state[key.replace(".base_layer.", ".")] = tensor
    return state


def linear_rows(layer: nn.Module, x: Tensor, first: int, count: int) -> Tensor:
    """Outputs `first .. first + count` of a bias-free linear layer, adapter included, float32 `[..., count]`,
    under autocast too."""
    rows = slice(first, first + count)
    with without_autocast(x):
        x = x.float()
        if not isinstance(layer, LoraLinear):
            return functional.linear(x, layer.weight[rows].float())  # type: ignore[index]
        out = functional.linear(x, layer.get_base_layer().weight[rows].float())
        if layer.disable_adapters:
            return out
        inner = functional.linear(x, layer.lora_A[_NAME].weight.float())
        return out + functional.linear(inner, layer.lora_B[_NAME].weight[rows].float()) * layer.scaling[_NAME]


def _settings_of(config: LoraConfig) -> LoraSettings | None:
    """Size and place of an adapter; None for one of peft's that they cannot describe."""
    if config.use_rslora or config.rank_pattern or config.alpha_pattern:
        return None
    targets = config.target_modules
    named = targets if isinstance(targets, str) else tuple(sorted(targets))
    return LoraSettings(rank=config.r, alpha=config.lora_alpha, targets=named)


def _adapter_state(module: nn.Module) -> dict[str, Tensor]:
    return {
        _PREFIX + key.replace(f".{_NAME}", ""): tensor for key, tensor in module.state_dict().items() if ".lora_" in key
    }


def _inject(module: nn.Module, config: LoraConfig) -> None:
    if is_attached(module):
        raise BadValue("the policy has a LoRA adapter already; merge it before attaching another")
    try:
        inject_adapter_in_model(config, module, adapter_name=_NAME)
    except ValueError as error:
        raise BadValue(f"LoRA finds nothing to attach to: {str(error).splitlines()[0]}") from error
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if ".lora_" in name:
            parameter.data = parameter.data.float()
    fuse(module)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, tuple, frozenset)):
        return sorted(value)
    return getattr(value, "value", value)
