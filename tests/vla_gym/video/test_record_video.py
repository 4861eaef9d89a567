from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from tests.vla_gym.video.test_grid import read
from vla_gym import VLAVectorEnv, WorkerRestarted
from vla_gym.video import RecordVideo

Make = Callable[..., VLAVectorEnv]
QUIET = np.zeros((3, 5, 2), dtype=np.float32)


def shown(envs: RecordVideo) -> dict[int, tuple[str, list[int], list[bool]]]:
    """Tile -> (instruction, steps done in each frame, solved in each frame)."""
    return {
        number: (
            tile.instruction,
            [int(frame[0, 0, 0]) for frame, _ in tile.frames],
            [solved for _, solved in tile.frames],
        )
        for number, tile in envs._grid.tiles.items()
    }


# Episodes of 3, 7 and 12 steps, chunks of 5, a grid of three cells for three slots.
WHOLE = {
    0: ("do thing 0", [0, 3], [False, True]),
    1: ("do thing 1", [0, 5, 7], [False, False, True]),
    2: ("do thing 2", [0, 5, 10, 12], [False, False, False, True]),
}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_each_episode_is_filmed_from_its_start_to_its_end(make: Make, mode: str, tmp_path: Path) -> None:
    benchmark = scripted_benchmark(num_trials=1)
    envs = make(benchmark, 3, chunk=5, schedule="grid", autoreset_mode=mode)
    filmed = RecordVideo(envs, tmp_path / "film.mp4", episodes=3)
    filmed.reset()
    for _ in range(3):
        assert not filmed.written
        filmed.step(QUIET)
    assert shown(filmed) == WHOLE
    assert filmed.written
    frames, report = read(tmp_path / "film.mp4")
    assert b"2 fps" in report  # 10 simulator steps a second, 5 a decision
    assert len(frames) == 4 + 4
    filmed.close()


def test_a_lost_episode_is_left_out(make: Make, tmp_path: Path) -> None:
    benchmark = scripted_benchmark((9, 9, 9), num_trials=1, failure="raise")
    envs = make(benchmark, 3, chunk=5, schedule="grid", on_worker_error="restart")
    filmed = RecordVideo(envs, tmp_path / "film.mp4", episodes=3)
    filmed.reset()
    filmed.step(QUIET)
    action = QUIET.copy()
    action[1, 0, 0] = 1.0
    with pytest.warns(WorkerRestarted):
        filmed.step(action)
    assert sorted(shown(filmed)) == [0, 2]
    filmed.step(QUIET)  # the lost cell begins again
    assert shown(filmed)[3][:2] == ("do thing 1", [0])
