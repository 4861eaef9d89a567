"""Videos of training episodes, on Toy-Reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vla_gym import make_vec
from vla_gym.video import VideoGrid
from zoo import GRPO, PPO
from zoo.training.evaluation import VIDEO_EPISODES
from zoo.training.rl_trainer import TrainingVideo

TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny", "width": 32, "heads": 2}}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, VideoGrid]:
    """File name -> the video that was written there."""
    found: dict[str, VideoGrid] = {}

    def write(self: VideoGrid, path: Path, *, fps: float) -> Path:
        assert fps > 0
        found[path.name] = self
        return path

    monkeypatch.setattr(VideoGrid, "write", write)
    return found


def learn(algo: type[PPO] | type[GRPO], steps: int, recorder: TrainingVideo, **settings: Any) -> Any:
    envs = make_vec("Toy-Reach", 4, chunk=4, seed=0, group_size=4 if algo is GRPO else 1)
    model = algo("VLAPolicy", envs, policy_kwargs=TINY, seed=0, device="cpu", **settings)
    model.learn(steps, callback=recorder)
    return model


def test_a_video_has_the_first_nine_episodes_from_their_first_frame(written: dict[str, VideoGrid]) -> None:
    # Toy-Reach ends after 12 steps, three decisions; four environments begin nine episodes within 3 x 3 decisions.
    learn(PPO, 16 * 9, TrainingVideo(10_000, Path("unused"), fps=10.0), n_steps=9, batch_size=36, n_epochs=1)
    (grid,) = written.values()
    assert list(written) == ["training_0.mp4"]
    assert len(grid) == VIDEO_EPISODES
    lengths = [len(tile.frames) for tile in grid.tiles.values()]
    # One frame before the first decision and one after each.
    assert all(2 <= length <= 4 for length in lengths)
    assert all(tile.instruction.startswith("reach the ") for tile in grid.tiles.values())


def test_videos_come_every_so_many_steps(written: dict[str, VideoGrid]) -> None:
    model = learn(PPO, 400, TrainingVideo(150, Path("unused"), fps=10.0), n_steps=3, batch_size=12, n_epochs=1)
    begun = sorted(int(name.removeprefix("training_").removesuffix(".mp4")) for name in written)
    assert begun[0] == 0
    assert [step // 150 for step in begun] == list(range(model.num_timesteps // 150 + 1))[: len(begun)]
    assert len(begun) >= 2


def test_groups_are_recorded_round_by_round(written: dict[str, VideoGrid]) -> None:
    learn(GRPO, 60, TrainingVideo(10_000, Path("unused"), fps=10.0), rollouts_per_update=3, batch_size=8)
    (grid,) = written.values()
    assert len(grid) == VIDEO_EPISODES
    # The first four are one group: they begin in one picture.
    first = [grid.tiles[tile].frames[0][0] for tile in range(4)]
    assert all((picture == first[0]).all() for picture in first)


def test_the_end_of_training_writes_what_there_is(tmp_path: Path) -> None:
    learn(PPO, 1, TrainingVideo(1, tmp_path, fps=10.0), n_steps=1, batch_size=4, n_epochs=1)
    assert (tmp_path / "training_0.mp4").stat().st_size > 1000
