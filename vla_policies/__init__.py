"""Vision-language-action policies with Stable-Baselines3's contract. Importing this loads no simulator."""

from vla_policies.backbone import Backbone, BackboneOutput, TokenBackbone
from vla_policies.base import VLAPolicy
from vla_policies.conventions import Conventions, check_compatible
from vla_policies.registry import FAMILIES
from vla_policies.sampling import ActionTokenDistribution, Sampling
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
    "check_compatible",
]
