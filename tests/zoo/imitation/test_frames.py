"""Frames, chunk targets and batches; one dataset or several, and which fit together."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.zoo.demonstrations.test_lerobot import shown
from tests.zoo.imitation.test_families import collect_demos
from tests.zoo.imitation.test_loss import shown as demonstration
from tests.zoo.launching import TOY
from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from zoo import sft
from zoo.config.advice import TrainingWarning
from zoo.config.algorithm_configs import SFTConfig
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.demonstrations.lerobot_video import Video
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.demonstrations.recorder import PRIVILEGED
from zoo.imitation import frames
from zoo.imitation.frames import check_rate, chunk_targets, frames_of

pytest.importorskip("pyarrow")
ASKED = [*TOY, "--seed", "0", "--batch-size", "8", "-n", "1", "--eval-episodes", "0"]
TINY = ("-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}")


def frames_learned(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, int]:
    """Fine-tune; the episodes and frames of its first line."""
    assert sft.run([*ASKED, *flags, *TINY]) == 0
    words = capsys.readouterr().out.split()
    return int(words[words.index("episodes,") - 1]), int(words[words.index("frames,") - 1])


@pytest.mark.processes
def test_several_datasets_are_learned_together(demos: Path, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = collect_demos(cwd / "others")
    capsys.readouterr()
    episodes = [one.length for folder in (demos, others) for one in read_dataset(folder)]
    assert frames_learned(capsys, "--dataset", str(demos), str(others)) == (len(episodes), sum(episodes))
    first_of_each = frames_learned(capsys, "--dataset", str(demos), str(others), "--episodes", "1")
    assert first_of_each[0] == 2
    stored = yaml.safe_load(Path("logs/sft/Toy-Reach_1/config.yml").read_text())["algo_kwargs"]["dataset"]
    assert stored == [str(demos), str(others)]
    assert SFTConfig(dataset=stored).folders == (demos, others)


def test_every_part_of_what_is_learned_is_in_its_digest() -> None:
    one = replace(demonstration(3), extra={PRIVILEGED: np.ones((3, 2), np.float32)})
    brighter = {camera: image_THWC + np.uint8(1) for camera, image_THWC in one.images.items()}
    changes = {
        "images": brighter,
        "instruction": "another",
        "state_TS": one.state_TS + 1,
        "action_TA": one.action_TA / 2,
        "extra": {PRIVILEGED: np.zeros((3, 2), np.float32)},
    }
    same, again = (frames_of([replace(one)], 2).digests() for _ in range(2))
    assert same == again
    for name, value in changes.items():
        whole, bare = frames_of([replace(one, **{name: value})], 2).digests()
        assert whole != same[0]
        # What earlier versions noted.
        assert (bare != same[1]) == (name in ("action_TA", "extra"))


def test_earlier_versions_noted_the_sha256_of_the_numbers() -> None:
    frames = frames_of([demonstration(3)], 2)
    expected = hashlib.sha256(frames.action_BKA.numpy().tobytes())
    assert frames.digests()[1] == expected.hexdigest()


def test_a_dataset_of_another_rate_is_learned_with_a_warning(tmp_path: Path) -> None:
    toy = find_benchmark("Toy-Reach")  # ten steps a second
    for fps in (10, 20):
        LeRobotWriter(tmp_path / str(fps), {}, fps=fps).add([shown(2)], tried=1)
    check_rate(tmp_path / "10", toy)
    with pytest.warns(TrainingWarning, match="has 20 frames per second, the environment 10 steps"):
        check_rate(tmp_path / "20", toy)


def test_targets_are_the_next_actions_and_stop_at_the_end() -> None:
    action_TKA, mask_TK = chunk_targets(np.array([[1.0], [2.0], [3.0]], np.float32), 2)
    assert action_TKA[..., 0].tolist() == [[1, 2], [2, 3], [3, 0]]
    assert mask_TK.tolist() == [[True, True], [True, True], [True, False]]


def test_a_chunk_may_be_longer_than_the_episode() -> None:
    action_TKA, mask_TK = chunk_targets(np.array([[0.5]], np.float32), 3)
    assert action_TKA[..., 0].tolist() == [[0.5, 0, 0]]
    assert mask_TK.tolist() == [[True, False, False]]


def test_frames_keep_what_belongs_together() -> None:
    frames = frames_of([demonstration(5), demonstration(3, "push")], 2)
    assert len(frames) == 8
    picked = frames.pick(torch.tensor([5]), torch.device("cpu"))
    assert bytes(picked.obs["instruction"][0].tolist()).rstrip(b"\0") == b"push"
    np.testing.assert_array_equal(picked.obs["image"][0], demonstration(3).images["image"][0])
    with pytest.raises(BadValue, match="no demonstrations"):
        frames_of([], 2)


def test_pictures_are_read_from_their_files_an_episode_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LeRobotWriter(tmp_path / "d", {}, fps=20).add([shown(3), shown(2, "push", 60), shown(4, "pull", 120)], tried=3)
    read: list[int] = []
    own = Video.read
    monkeypatch.setattr(Video, "read", lambda video, first, count: read.append(count) or own(video, first, count))
    episodes = read_dataset(tmp_path / "d")
    assert read == [1]  # whose size all have
    del episodes[1]
    frames = frames_of(episodes, 2)
    assert read == [1, 3, 4]
    wanted = np.concatenate([shown(3).images["image"], shown(4, "pull", 120).images["image"]])
    np.testing.assert_array_equal(frames.obs["image"], wanted)


def test_pictures_that_fill_the_memory_are_learned_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_memory = frames_of([demonstration(5), demonstration(3, "push")], 2)
    monkeypatch.setattr(frames, "MEMORY_SHARE", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level("INFO"):
        in_file = frames_of([demonstration(5), demonstration(3, "push")], 2)
    assert f"lie in a file of '{tmp_path}'" in caplog.text
    assert not [*tmp_path.iterdir()]  # it goes with the process, however that ends
    assert in_file.digests() == in_memory.digests()
    some = torch.tensor([6, 2])
    picked, expected = (frames.pick(some, torch.device("cpu")) for frames in (in_file, in_memory))
    torch.testing.assert_close(picked.obs, expected.obs, rtol=0, atol=0)


def test_episodes_of_several_sizes_or_cameras_are_no_frames() -> None:
    small = replace(demonstration(2), images={"image": np.zeros((2, 1, 1, 3), np.uint8)})
    with pytest.raises(BadValue, match="cannot be learned together: one has image 1x1x3"):
        frames_of([demonstration(2), small], 2)
    one = demonstration(2)
    two = replace(one, images={**one.images, "wrist_image": one.images["image"]})
    for unlike in ([one, two], [two, one]):
        with pytest.raises(BadValue, match="wrist_image"):
            frames_of(unlike, 2)


SHAPE, SIZE = (4, 8, 8, 3), 4 * 8 * 8 * 3


@pytest.mark.parametrize(
    ("ranks", "cameras", "in_file"), [(None, 1, False), ("1", 1, False), ("2", 1, True), (None, 2, True)]
)
def test_cameras_and_processes_of_one_machine_share_its_memory(
    ranks: str | None, cameras: int, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "main_memory", lambda: 2 * SIZE)
    monkeypatch.delenv(frames.LOCAL_RANKS, raising=False)
    if ranks is not None:
        monkeypatch.setenv(frames.LOCAL_RANKS, ranks)
    found = frames.image_arrays({str(camera): SHAPE for camera in range(cameras)})
    for number, images in enumerate(found.values()):
        assert isinstance(images, np.memmap) == in_file
        images[:] = number
    assert [int(images.sum(dtype=np.int64)) for images in found.values()] == [0, SIZE][:cameras]


def test_images_that_no_disk_holds_are_one_line() -> None:
    with pytest.raises(BadValue, match=r"images of 3458764513\.8 GB .* no room .* TMPDIR"):
        frames.image_arrays({"image": (2**40, 1024, 1024, 3)})
