"""Low-rank adapters (LoRA, arXiv:2106.09685) through peft: attach, merge, save alone, load.

Adapter folders are plain peft's (`adapter_config.json`, `adapter_model.safetensors`), so they load with
`peft.PeftModel.from_pretrained` on the published model, and adapters made elsewhere load here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import BadValue
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


def attached_settings(module: nn.Module) -> LoraSettings | None:
    """Size and place of the attached adapter; None for one of peft's that they cannot describe."""
    config = getattr(module, "peft_config", {})[_NAME]
    if config.use_rslora or config.rank_pattern or config.alpha_pattern:
        return None
    targets = config.target_modules
    named = targets if isinstance(targets, str) else tuple(sorted(targets))
    return LoraSettings(rank=config.r, alpha=config.lora_alpha, targets=named)


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


@contextmanager
def switched_off(module: nn.Module) -> Iterator[None]:
    """Context manager without the adapters of `module`; which parameters train is the same before and after."""
    layers = [layer for layer in module.modules() if isinstance(layer, LoraLayer)]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        # peft sets `requires_grad` by its own rule.
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)


def merge(module: nn.Module) -> None:
    """Add every adapter to its layer's weight and remove it, in place."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, LoraLayer):
            layer.merge()
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, layer.get_base_layer())
    vars(module).pop("peft_config", None)


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


def _adapter_state(module: nn.Module) -> dict[str, Tensor]:
    return {
        _PREFIX + key.replace(f".{_NAME}", ""): tensor for key, tensor in module.state_dict().items() if ".lora_" in key
    }


def save_adapter(module: nn.Module, folder: Path, base: str, revision: str | None = None) -> None:
    """Write the adapters alone; `base` is the folder or Hub id (at `revision`) of the model they belong to."""
    config = getattr(module, "peft_config", {}).get(_NAME)
    if config is None:
        raise BadValue("the policy has no LoRA adapter to save; attach one with backbone_kwargs lora: {rank: 32}")
    folder.mkdir(parents=True, exist_ok=True)
    values = {key: _plain(value) for key, value in config.to_dict().items()}
    values["base_model_name_or_path"] = base
    values["revision"] = revision
    values["inference_mode"] = True
    write_safetensors(folder / ADAPTER_WEIGHTS, _adapter_state(module))
    write_json(folder / ADAPTER_CONFIG, values, sort_keys=True)


def load_adapter(module: nn.Module, folder: Path) -> None:
    """Attach the adapters of a folder to `module`; tensors that do not fit raise and are named."""
    _inject(module, LoraConfig(**adapter_settings(folder, LoraConfig.__dataclass_fields__)))
    copy_adapter(module, folder)


def copy_adapter(module: nn.Module, folder: Path) -> None:
    """Overwrite the attached adapters by those of a folder, in place."""
    path = folder / ADAPTER_WEIGHTS
    if not path.is_file():
        raise BadValue(f"adapter folder '{folder}' lacks {ADAPTER_WEIGHTS}")
    tensors, state = read_safetensors(path), module.state_dict()
    # peft also writes the weight of an adapted output layer: the base's, or trained with the adapter.
    extra = {key: state[name] for key in tensors if (name := key.removeprefix(_PREFIX)) in state}
    wanted = {**_adapter_state(module), **extra}
    check_tensors(path, tensors, wanted)
    with torch.no_grad():
        for key, tensor in wanted.items():
            tensor.copy_(tensors[key])


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
