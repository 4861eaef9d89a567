"""Observations and actions of a policy as a record, and checks that raise where an environment differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from vla_gym.errors import BadValue
from vla_gym.observation import MAX_INSTRUCTION_BYTES
from vla_gym.specs import ActionSpec

CAMERA_KEYS = ("image", "wrist_image")
"""Observation keys that are images, main camera first."""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Observations and actions of one policy; part of its `config.json`."""

    cameras: tuple[str, ...]
    """Observation keys of its images, in order."""
    image_size: int
    """Side of the network's square image, pixels; other sizes are resized to it."""
    state_dim: int
    """S, length of the proprioceptive vector; 0 = no `state` input."""
    chunk: int
    """K, actions per decision."""
    action_dim: int
    """A, numbers per action."""
    action_spec: ActionSpec | None = None
    """Action convention; None = learned from scratch, takes the environment's."""

    def __post_init__(self) -> None:
        if min(self.image_size, self.chunk, self.action_dim) < 1 or self.state_dim < 0:
            raise BadValue(
                "image_size, chunk and action_dim must be >= 1 and state_dim >= 0, got "
                f"{self.image_size}, {self.chunk}, {self.action_dim} and {self.state_dim}"
            )
        if not self.cameras or not set(self.cameras) <= set(CAMERA_KEYS) or len(set(self.cameras)) < len(self.cameras):
            raise BadValue(f"cameras must be some of {', '.join(CAMERA_KEYS)}, once each, got {list(self.cameras)}")

    def observation_space(self) -> spaces.Dict:
        """The policy's observations in the layout of `as_sb3()`."""
        image = (self.image_size, self.image_size, 3)
        parts: dict[str, spaces.Space[Any]] = {key: spaces.Box(0, 255, image, np.uint8) for key in self.cameras}
        if self.state_dim:
            parts["state"] = spaces.Box(-np.inf, np.inf, (self.state_dim,), np.float32)
        parts["instruction"] = spaces.Box(0, 255, (MAX_INSTRUCTION_BYTES,), np.uint8)
        return spaces.Dict(parts)

    def action_space(self) -> spaces.Box:
        """The policy's action chunks."""
        return spaces.Box(-1.0, 1.0, (self.chunk, self.action_dim), np.float32)

    @property
    def lengths(self) -> dict[str, int]:
        """Numbers that must be the environment's, for `check_lengths`."""
        return {"state_dim": self.state_dim, "chunk": self.chunk, "action_dim": self.action_dim}


def conventions_of(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    action_spec: ActionSpec | None = None,
) -> Conventions:
    """Conventions of a policy learned from scratch on these spaces.

    Image spaces may be `[H, W, 3]` or, behind SB3's `VecTransposeImage`, `[3, H, W]`; actions `[K, A]`, or `[A]` of
    one step.
    """
    if not isinstance(observation_space, spaces.Dict) or not {"image", "instruction"} <= observation_space.keys():
        raise BadValue(
            "VLAPolicy needs a Dict observation with 'image' and 'instruction' (optionally 'wrist_image', "
            f"'state'), as `vla_gym.make_vec(...).as_sb3()` gives it; got {observation_space}"
        )
    parts = observation_space.spaces
    state_shape = parts["state"].shape if "state" in parts else (0,)
    if (
        not isinstance(action_space, spaces.Box)
        or len(action_space.shape) not in (1, 2)
        or np.any(action_space.low != -1.0)
        or np.any(action_space.high != 1.0)
    ):
        raise BadValue(
            f"VLAPolicy needs a Box action space [chunk, action_dim] in [-1, 1], got {action_space}; a vector "
            "environment has it as envs.as_sb3().action_space"
        )
    chunk, action_dim = (1, *action_space.shape)[-2:]
    return Conventions(
        cameras=tuple(key for key in CAMERA_KEYS if key in parts),
        image_size=_image_side(parts["image"]),
        state_dim=int(state_shape[0]) if state_shape else 0,
        chunk=chunk,
        action_dim=action_dim,
        action_spec=action_spec,
    )


def check_fits(policy: Conventions, env: Conventions, hint: str = "") -> None:
    """Raise `BadValue` when an environment lacks one of the policy's inputs, or takes other actions.

    `hint`: see `check_lengths`.
    """
    if not set(policy.cameras) <= set(env.cameras):
        raise BadValue(
            f"the policy looks at {list(policy.cameras)}, the environment gives {list(env.cameras)}; "
            "wrist_camera: true gives wrist_image"
        )
    check_lengths(policy.lengths, env.lengths, hint)
    if env.action_spec is not None:
        check_compatible(env.action_spec, policy.action_spec)


def check_lengths(policy: Mapping[str, int], env: Mapping[str, int], hint: str = "") -> None:
    """Raise `BadValue` where an environment's lengths are not the policy's; without a state input any state fits.

    `hint`: what helps where an action has another length, `Backbone.length_hint`.
    """
    for name, wanted in policy.items():
        if wanted != env[name] and not (name == "state_dim" and wanted == 0):
            more = hint if name == "action_dim" else ""
            raise BadValue(f"the policy was made for {name}={wanted}, the environment has {name}={env[name]}{more}")


def check_compatible(env_spec: ActionSpec, policy_spec: ActionSpec | None) -> None:
    """Raise `BadValue`, both sides shown, unless policy and environment have one action convention.

    A policy without a spec was learned from scratch on its environment and takes any.
    """
    if policy_spec is None or policy_spec == env_spec:
        return
    env, policy = asdict(env_spec), asdict(policy_spec)
    differing = ", ".join(
        f"{name}: environment '{env[name]}', policy '{policy[name]}'" for name in env if env[name] != policy[name]
    )
    raise BadValue(f"the policy's actions are not written as the environment reads them ({differing})")


def _image_side(space: spaces.Space[Any]) -> int:
    shape = space.shape or ()
    for sides, channels in ((shape[:2], shape[2:]), (shape[1:], shape[:1])):
        if len(shape) == 3 and channels == (3,) and sides[0] == sides[1]:
            return int(sides[0])
    raise BadValue(f"images must be square RGB, [H, W, 3] or [3, H, W], got shape {shape}")
