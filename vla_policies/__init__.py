"""Vision-language-action policies with Stable-Baselines3's contract. Importing this loads no simulator."""

from importlib import import_module
from typing import TYPE_CHECKING

from vla_gym import __version__

if TYPE_CHECKING:
    from vla_policies.actions.sampling import ActionTokenDistribution, Sampling
    from vla_policies.backbone import Backbone, BackboneOutput, TokenBackbone
    from vla_policies.conventions import Conventions, check_compatible
    from vla_policies.policy import VLAPolicy
    from vla_policies.registry import FAMILIES, register_policy
    from vla_policies.types import ActionSample, Evaluation, PolicyInputs

__all__ = [
    "FAMILIES",
    "ActionSample",
    "ActionTokenDistribution",
    "Backbone",
    "BackboneOutput",
    "Conventions",
    "Evaluation",
    "PolicyInputs",
    "Sampling",
    "TokenBackbone",
    "VLAPolicy",
    "__version__",
    "check_compatible",
    "register_policy",
]

_MODULES = {
    "FAMILIES": "registry",
    "ActionSample": "types",
    "ActionTokenDistribution": "actions.sampling",
    "Backbone": "backbone",
    "BackboneOutput": "backbone",
    "Conventions": "conventions",
    "Evaluation": "types",
    "PolicyInputs": "types",
    "Sampling": "actions.sampling",
    "TokenBackbone": "backbone",
    "VLAPolicy": "policy",
    "check_compatible": "conventions",
    "register_policy": "registry",
}


# Loaded on first use: a typo on the command line must not wait for torch.
def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'vla_policies' has no attribute '{name}'")
    return getattr(import_module(f"vla_policies.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
