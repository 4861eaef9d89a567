"""vla-eval's names of observations and of the formats of its `DimSpec`; imports no vla_eval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_gym.specs import ActionSpec

NAMES = {"image": "agentview", "wrist_image": "wrist", "state": "states", "instruction": "task_description"}
"""Ours -> vla-eval's; images stand under `images`."""
_LIBERO_STATE = "eef position 3, axis-angle 3"
"""How `Benchmark.protocol` begins to describe the state that vla-eval calls eef_pos3_axisangle3_gripper2."""


def vla_eval_observation(obs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation of ours as vla-eval's model servers read it."""
    images = {NAMES[key]: obs[key] for key in ("image", "wrist_image") if key in obs}
    return {"images": images, **{NAMES[key]: obs[key] for key in ("state", "instruction") if key in obs}}


def state_format(layout: str) -> str:
    """Return `DimSpec.format` of a state that `Benchmark.protocol` describes so."""
    return "eef_pos3_axisangle3_gripper2" if layout.startswith(_LIBERO_STATE) else "raw"


def action_parts(spec: ActionSpec | None, dims: int) -> dict[str, dict[str, object]]:
    """Return the actions as `DimSpec.to_dict` writes them, which vla-eval's runs compare with the benchmark's."""
    if spec is None or spec.frame == "absolute" or spec.gripper == "none":
        return {"actions": {"name": "actions", "dims": dims, "format": "raw"}}
    parts: dict[str, dict[str, object]] = {
        "position": {"name": "position", "dims": 3, "format": "delta_xyz", "range": [-1, 1]}
    }
    if spec.rotation != "none":
        parts["rotation"] = {"name": "rotation", "dims": 3, "format": spec.rotation, "range": [-3.15, 3.15]}
    sign = "positive" if spec.gripper == "plus_one_closes" else "negative"
    parts["gripper"] = {"name": "gripper", "dims": 1, "format": f"binary_close_{sign}", "range": [-1, 1]}
    return parts
