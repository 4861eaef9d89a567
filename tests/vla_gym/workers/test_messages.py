from __future__ import annotations

import numpy as np
import pytest

from vla_gym.errors import MissingDependency
from vla_gym.observation import ObservationLayout
from vla_gym.workers.messages import (
    EpisodeStats,
    Failure,
    MemoryLayout,
    Report,
    SlotMemory,
    actions_from_text,
    actions_to_text,
    read_reply,
    write_failure,
    write_reports,
)


def test_reports_there_and_back_exactly() -> None:
    stats = EpisodeStats(total_reward=0.1 + 0.2, length=7, success_once=True, success_at_end=False, seconds=1 / 3)
    reports = [
        Report(start_state="ab"),
        Report(step_rewards=(0.1, 1 / 3), success=True, terminated=True, episode=stats),
        Report(truncated=True, lost=True),
    ]
    assert read_reply(write_reports(reports)) == reports


def test_failures_are_no_reports() -> None:
    assert read_reply(write_failure(RuntimeError("no display"), command=1)) == Failure(
        kind="RuntimeError", text="no display", command=1
    )
    assert Failure(kind="KeyError", text="no 'such' thing").user_error() is None
    error = Failure(kind="MissingDependency", text="fetch the assets").user_error()
    assert isinstance(error, MissingDependency)
    assert str(error) == "fetch the assets"


def test_actions_as_text_keep_every_bit() -> None:
    action_TA = np.array([[1e-45, -0.0], [np.pi, -1.0]], dtype=np.float32)
    assert actions_from_text(actions_to_text(action_TA), 2).tobytes() == action_TA.tobytes()
    assert actions_from_text(actions_to_text(action_TA[:0]), 2).shape == (0, 2)


MEMORY = MemoryLayout(
    num_slots=3,
    chunk=2,
    action_dim=7,
    observation=ObservationLayout(cameras=("image", "wrist_image"), image_size=5, state_dim=3),
)


def observation(value: int) -> dict[str, np.ndarray]:
    image = np.full((5, 5, 3), value, dtype=np.uint8)
    return {"image": image, "wrist_image": image + 1, "state": np.full(3, value, dtype=np.float32)}


def test_a_wrong_observation_is_refused() -> None:
    memory = SlotMemory(MEMORY)
    right = observation(1)
    with pytest.raises(ValueError, match="keys"):
        memory.write(0, {"image": right["image"]})
    with pytest.raises(ValueError, match=r"'image' is uint8\[4, 5, 3\]"):
        memory.write(0, {**right, "image": right["image"][1:]})
    with pytest.raises(ValueError, match="'state' is float64"):
        memory.write(0, {**right, "state": right["state"].astype(np.float64)})
