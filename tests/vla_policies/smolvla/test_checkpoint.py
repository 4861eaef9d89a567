from __future__ import annotations

import pytest

from vla_policies.smolvla.checkpoint import published_names, with_absent_cameras
from vla_policies.smolvla.config import NetworkShape, SmolVLAConfig, tiny_config
from vla_policies.smolvla.lerobot_config import SETTINGS


def declared(*cameras: str, empty: int) -> SmolVLAConfig:
    features = {name: {"type": "VISUAL", "shape": [3, 64, 64]} for name in cameras}
    values = {**SETTINGS, "empty_cameras": empty, "input_features": features}
    config = tiny_config()
    return SmolVLAConfig(
        network=NetworkShape(),
        preprocessing=config.preprocessing,
        learning=config.learning,
        flow=config.flow,
        published=values,
    )


@pytest.mark.parametrize(
    ("empty", "present", "blocks"),
    # Three declared and `empty` more that are never there: of those absent, `empty` are filled in.
    [(0, 2, 0), (1, 2, 1), (1, 3, 1), (2, 1, 2)],
)
def test_absent_cameras(empty: int, present: int, blocks: int) -> None:
    names = [f"observation.images.camera{number}" for number in (1, 2, 3)]
    names += [f"observation.images.empty_camera_{number}" for number in range(empty)]
    assert with_absent_cameras(declared(*names, empty=empty), present).network.empty_blocks == blocks


def test_old_names() -> None:
    names = ("model._orig_mod.state_proj.bias", "normalize_inputs.so100_buffer_observation_state.mean", "model.x")
    assert list(published_names(dict.fromkeys(names))) == ["model.state_proj.bias", "model.x"]  # type: ignore[arg-type]
