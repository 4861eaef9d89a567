"""LoRA adapters of a policy: attached, saved alone, loaded, switched off, merged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from vla_policies.backbone import Backbone
from vla_policies.modules import lora
from vla_policies.modules.lora_config import LoraSettings


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
            lora.attach(self.adapted, self.lora, self.lora_targets)
        self.finish()

    def restore(self, folder: Path) -> None:
        if not self.has_adapter:
            super().restore(folder)
            return
        lora.copy_adapter(self.adapted, folder)
        self.load_beside(folder)
        self.finish()

    @property
    def has_adapter(self) -> bool:
        return lora.is_attached(self.adapted)

    def save_adapter(self, folder: Path, config: Mapping[str, Any], base: str) -> None:
        lora.save_adapter(self.adapted, folder, base, self.source_revision if base == self.source else None)
        self.save_beside(folder, config)

    def load_adapter(self, folder: Path) -> None:
        lora.load_adapter(self.adapted, folder)
        self.set_lora(lora.attached_settings(self.adapted))
        self.load_beside(folder)
        self.finish()

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        self.adapters_on = False
        try:
            with lora.switched_off(self.adapted):
                yield
        finally:
            self.adapters_on = True

    def merge_adapter(self) -> None:
        lora.merge(self.adapted)
        self.set_lora(None)
        self.finish()
