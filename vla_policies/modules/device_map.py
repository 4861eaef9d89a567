"""One network on several devices: the language model's layers spread out, everything else on the first device.

`device_map` is transformers': "auto", one device's name, or a mapping of module names to devices. A layer on "disk" is
read when it runs, and does not learn. Accelerate moves tensors between devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import get_max_memory
from torch import nn

from vla_gym.errors import BadValue, unknown_name
from vla_policies.modules.lora import is_attached

DeviceMap = str | Mapping[str, str | int]
"""The user's value."""
Place = torch.device | str
"""A device, or `DISK`."""
DISK = "disk"


def place(network: nn.Module, layers: str, device_map: DeviceMap, offload_folder: str | Path | None = None) -> None:
    """Move `network` as in `device_map`, in place; `layers` is the name of its list of Llama layers.

    The last layer stays on the first device, where its parts are called separately. Layers on "disk" are written to
    `offload_folder` and frozen. Parameters may be other objects afterwards: create optimisers after this.
    """
    plan = layer_devices(network, layers, device_map)
    if DISK in plan.values():
        _check_disk(network, offload_folder)
    if len(set(plan.values())) == 1:
        network.to(plan[""])
    else:
        dispatch(network, layers, plan, offload_folder)


def dispatch(
    network: nn.Module,
    layers: str,
    plan: Mapping[str, Place],
    offload_folder: str | Path | None = None,
    *,
    force_hooks: bool = False,
) -> None:
    """Let accelerate move the layers and their inputs; with `force_hooks` even where all is one device."""
    main = plan[""]
    names = [name for name, _ in network.named_children()]
    owner = layers.split(".", maxsplit=1)[0]
    whole = {name: main for name in names if name != owner}
    for name, module in network.get_submodule(owner).named_modules():
        path = f"{owner}.{name}"
        if not list(module.children()) and not path.startswith(layers + "."):
            whole[path] = main
    whole |= {name: device for name, device in plan.items() if name}
    dispatch_model(network, whole, main_device=main, offload_dir=offload_folder, force_hooks=force_hooks)
    for name, device in plan.items():
        if device == DISK:
            network.get_submodule(name).requires_grad_(False)


def _check_disk(network: nn.Module, folder: str | Path | None) -> None:
    if folder is None:
        raise BadValue("device_map puts layers on disk; say in which folder: offload_folder='offload'")
    if Path(folder).exists() and any(Path(folder).iterdir()):
        raise BadValue(f"offload_folder '{folder}' is not empty; layers go to a folder of their own")
    if is_attached(network):
        raise BadValue("layers on disk act but do not learn; a policy with LoRA takes devices only")


def layer_devices(network: nn.Module, layers: str, device_map: DeviceMap) -> dict[str, Place]:
    """Device of every layer by its name, and under "" that of everything else."""
    count = len(network.get_submodule(layers))  # type: ignore[arg-type]
    names = [f"{layers}.{index}" for index in range(count)]
    if isinstance(device_map, str) and device_map != "auto":
        device_map = {"": device_map}
    if device_map == "auto":
        device_map = _spread(network, layers)
    assert isinstance(device_map, Mapping)
    for name in device_map:
        if name and name not in dict(network.named_modules()):
            raise unknown_name("module in device_map", name, ["", layers, names[0], names[-1]])
    main = _device(device_map.get("", next(iter(device_map.values()))))
    if main == DISK:
        raise BadValue("device_map: only layers may be on disk, e.g. {'': 'cpu', '" + names[0] + "': 'disk'}")
    found = {"": main}
    for name in names:
        prefixes = [key for key in device_map if not key or name == key or name.startswith(key + ".")]
        found[name] = _device(device_map[max(prefixes, key=len)]) if prefixes else main
    found[names[-1]] = main
    return found


def _spread(network: nn.Module, layers: str) -> Mapping[str, str | int]:
    """A map of as many layers on each GPU as fit, the rest on the first GPU; of one device where there is only one."""
    if torch.cuda.device_count() < 2:
        return {"": "cuda" if torch.cuda.is_available() else "cpu"}
    kinds = {type(layer).__name__ for layer in network.get_submodule(layers).children()}
    memory = {device: size for device, size in get_max_memory().items() if device != "cpu"}
    spread = infer_auto_device_map(network, max_memory=memory, no_split_module_classes=sorted(kinds))
    if {"cpu", "disk"} & set(map(str, spread.values())):
        raise BadValue(f"the network does not fit the memory of {len(memory)} GPUs; use more, or dtype='bfloat16'")
    return {"": 0, **{name: device for name, device in spread.items() if name.startswith(layers)}}


def _device(value: str | int) -> Place:
    if value == DISK:
        return DISK
    try:
        return torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
    except RuntimeError as error:
        cause = str(error).splitlines()[0]
        raise BadValue(f"device_map: '{value}' is no device such as cpu, cuda, cuda:1 or disk ({cause})") from error
