"""The table of model families. One of this package is one folder and one line here; one from outside is a call of
`register_policy`, or an entry point `name = "module:Class"` of its distribution in the group `vla_zoo.policies`."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from vla_gym.errors import BadValue, shown, unknown_name

if TYPE_CHECKING:  # the class brings torch, which names are checked without
    from vla_policies.backbone import Backbone

FAMILIES: dict[str, str] = {
    **{point.name: point.value for point in entry_points(group="vla_zoo.policies")},
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


def register_policy(name: str, family: str | type[Backbone]) -> None:
    """Add a model family under `name` to everything that takes one: `VLAPolicy`, recipes, `--policy`.

    Args:
        name: its name, which checkpoints record; the class has it as `family`.
        family: class derived from `vla_policies.Backbone`, or "module:Class", imported when it is used.

    Repeating a call changes nothing. Raises `BadValue` for a name that is taken, or is another than the class's own.
    """
    entry = family if isinstance(family, str) else f"{family.__module__}:{family.__qualname__}"
    own = name if isinstance(family, str) else family.family
    if not re.fullmatch(r"[a-z0-9][\w-]*", name) or own != name or not re.fullmatch(r"[\w.]+:\w+", entry):
        raise BadValue(
            f"register_policy wants a name such as my-vla, which its class has as `family`, and a class of a module or "
            f"'module:Class'; got {shown(name)} and {shown(entry)}, whose family is {shown(own)}"
        )
    if FAMILIES.setdefault(name, entry) != entry:
        raise BadValue(f"policy family '{name}' is taken by {FAMILIES[name]}; choose another name")


def family_class(family: str) -> type[Backbone]:
    """Return the backbone class of `family`; raises `UnknownName` with the nearest family."""
    if family not in FAMILIES:
        raise unknown_name("policy family", family, FAMILIES)
    module, _, name = FAMILIES[family].partition(":")
    return getattr(import_module(module), name)
