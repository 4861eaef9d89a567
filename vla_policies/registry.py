"""The table of model families. Adding a family is one folder and one line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from vla_gym.errors import unknown_name

if TYPE_CHECKING:  # the class brings torch, which names are checked without
    from vla_policies.backbone import Backbone

FAMILIES: dict[str, str] = {
    "nano": "vla_policies.nano.model:NanoBackbone",
    "openvla": "vla_policies.openvla.policy:OpenVLABackbone",
    "openvla-oft": "vla_policies.openvla.oft:OpenVLAOFTBackbone",
    "nano-flow": "vla_policies.nano.flow_model:NanoFlowBackbone",
    "pi0": "vla_policies.pi0.model:Pi0Backbone",
    "pi05": "vla_policies.pi0.model:Pi05Backbone",
    "smolvla": "vla_policies.smolvla.model:SmolVLABackbone",
}
"""Family name -> "module:Class"; the module is imported only when the family is used."""

PUBLISHED_LAYOUTS: dict[str, tuple[str, ...]] = {
    "openvla": ("openvla-oft", "openvla"),
    "pi0": ("pi0",),
    "pi05": ("pi05",),
    "openpi": ("pi0", "pi05"),
    "smolvla": ("smolvla",),
}
"""`model_type` (or `type`) in the `config.json` of published checkpoints -> families that read such folders.
The default is the first whose class recognises the folder."""


NEEDS_NO_CONFIG = ("pi0",)
"""Families that know the weights of fine-tunes published without a `config.json` (`Backbone.implied_config`)."""


def family_class(family: str) -> type[Backbone]:
    """Return the backbone class of `family`; raises `UnknownName` with the nearest family."""
    if family not in FAMILIES:
        raise unknown_name("policy family", family, FAMILIES)
    module, _, name = FAMILIES[family].partition(":")
    found: type[Backbone] = getattr(import_module(module), name)
    return found
