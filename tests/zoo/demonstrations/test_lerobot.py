"""Demonstrations to LeRobotDataset v3.0 and back."""

from __future__ import annotations

import io
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo.demonstrations import lerobot_format as lr
from zoo.demonstrations import lerobot_video
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.demonstrations.lerobot_video import Video, cameras_of, write_video
from zoo.demonstrations.lerobot_writer import LeRobotWriter, locked
from zoo.demonstrations.recorder import DRAWN, PRIVILEGED, REWARD, SUCCESS, Demonstration

pytest.importorskip("pyarrow")
SETTINGS = {"env": "Toy", "noise": 0.0}


def shown(length: int, instruction: str = "reach", shade: int = 0, side: int = 16) -> Demonstration:
    """Grey pictures, one shade darker than the next."""
    grey_T = np.arange(length, dtype=np.uint8) * 8 + shade
    steps_T = np.arange(length, dtype=np.float32)
    return Demonstration(
        task="a-task",
        instruction=instruction,
        start=StartState(task_id=3, trial_id=shade),
        start_state=f"{shade:02x}",
        success=True,
        images={"image": np.tile(grey_T[:, None, None, None], (1, side, side, 3))},
        state_TS=np.stack([steps_T, -steps_T], axis=1),
        action_TA=np.tile(steps_T[:, None] / 10, (1, 3)),
    )


@pytest.mark.parametrize(("side", "crf", "worst"), [(16, 0, 0), (15, 0, 0), (16, 16, 3), (15, 16, 3)])
def test_what_is_written_is_read(tmp_path: Path, side: int, crf: int, worst: int) -> None:
    episodes = [shown(4, "reach", 10, side), shown(6, "push it", 60, side), shown(2, "reach", 120, side)]
    writer = LeRobotWriter(tmp_path / "d", SETTINGS, fps=80, crf=crf)
    writer.add(episodes[:2], tried=2)
    writer.add(episodes[2:], tried=4)
    found = read_dataset(tmp_path / "d")
    assert len(found) == 3
    for one, other in zip(episodes, found, strict=True):
        assert (one.instruction, one.start, one.start_state) == (other.instruction, other.start, other.start_state)
        np.testing.assert_array_equal(one.action_TA, other.action_TA)
        np.testing.assert_array_equal(one.state_TS, other.state_TS)
        assert one.images["image"].shape == other.images["image"].shape
        # What is lost with crf 16 is less than the step from one frame to the next.
        gap = np.asarray(one.images["image"]).astype(int) - np.asarray(other.images["image"])
        assert np.abs(gap).max() <= worst
    assert len(read_dataset(tmp_path / "d", 2)) == 2
    with pytest.raises(BadValue, match="holds 3 episodes, asked for 4"):
        read_dataset(tmp_path / "d", 4)


def test_outcomes_are_read_when_asked_for(tmp_path: Path) -> None:
    reward_T, solved_T = np.array([0.0, 0.5, -1.0], dtype=np.float32), np.array([False, True, False])
    episodes = [
        replace(shown(3), extra={REWARD: reward_T, SUCCESS: solved_T}),
        replace(shown(2), extra={REWARD: reward_T[:2], SUCCESS: ~solved_T[:2]}, success=False),
    ]
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=20).add(episodes, tried=2)
    first, second = read_dataset(tmp_path / "d", outcomes=True)
    assert first.extra.keys() == {REWARD, SUCCESS}
    assert (first.extra[REWARD].dtype, first.extra[SUCCESS].dtype) == (np.float32, np.bool_)
    np.testing.assert_array_equal(first.extra[REWARD], reward_T)
    np.testing.assert_array_equal(second.extra[SUCCESS], ~solved_T[:2])
    assert read_dataset(tmp_path / "d")[0].extra == {}


def test_what_decides_by_every_image_is_not_given_old_ones(tmp_path: Path) -> None:
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=20).add(
        [replace(shown(2), extra={DRAWN: np.array([True, False])})], tried=1
    )
    assert read_dataset(tmp_path / "d")[0].extra[DRAWN].tolist() == [True, False]
    with pytest.raises(BadValue, match="collect without --draw-every"):
        read_dataset(tmp_path / "d", outcomes=True)


def test_one_number_a_frame_is_a_plain_column(tmp_path: Path) -> None:
    """lerobot reads features of shape [1] as numbers, and refuses lists of one for them."""
    seen_T1 = np.array([[0.5], [0.25], [-1.0]], dtype=np.float32)
    one = replace(shown(3), state_TS=seen_T1, action_TA=-seen_T1, extra={PRIVILEGED: 2 * seen_T1})
    write = LeRobotWriter(tmp_path / "d", SETTINGS, fps=10)
    write.add([one], tried=1)
    write.add([one], tried=2)
    pa, pq = lr.parquet()
    schema = pq.read_schema(tmp_path / "d" / lr.DATA_PATH.format(**lr.place(0)))
    features = json.loads((tmp_path / "d" / lr.INFO_PATH).read_text())["features"]
    for name in (lr.STATE, lr.ACTION, PRIVILEGED):
        assert (schema.field(name).type, features[name]["shape"]) == (pa.float32(), [1])
    for found in read_dataset(tmp_path / "d", privileged=True):
        np.testing.assert_array_equal(found.state_TS, seen_T1)
        np.testing.assert_array_equal(found.action_TA, -seen_T1)
        np.testing.assert_array_equal(found.extra[PRIVILEGED], 2 * seen_T1)
    stats = json.loads((tmp_path / "d" / lr.STATS_PATH).read_text())
    assert stats[lr.ACTION]["max"] == [1.0]


def test_lists_of_one_number_of_earlier_versions_are_read(tmp_path: Path) -> None:
    action_T1 = np.array([[0.5], [-0.25]], dtype=np.float32)
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=10).add([replace(shown(2), action_TA=action_T1)], tried=1)
    change_table(tmp_path / "d", DATA, action=action_T1.tolist())
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=10).add([replace(shown(2), action_TA=action_T1)], tried=2)
    for found in read_dataset(tmp_path / "d"):
        np.testing.assert_array_equal(found.action_TA, action_T1)


def test_colours_are_kept_to_the_byte(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    episode = replace(shown(6), images={"image": noise})
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=20).add([episode], tried=1)
    (found,) = read_dataset(tmp_path / "d")
    np.testing.assert_array_equal(found.images["image"], noise)
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert info["features"]["observation.images.image"]["info"]["video.pix_fmt"] == "gbrp"


def as_images(root: Path, noise_THWC: np.ndarray, *, broken: bool = False) -> None:
    """Turn the one camera of a dataset of one episode into a feature of dtype image, as many published ones have."""
    pa, pq = lr.parquet()
    info = json.loads((root / lr.INFO_PATH).read_text())
    info["features"]["observation.images.image"] |= {"dtype": "image"}
    (root / lr.INFO_PATH).write_text(json.dumps(info))
    (path,) = root.glob("data/*/*.parquet")
    cells = []
    for frame in noise_THWC:
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, format="PNG")
        cells.append({"bytes": buffer.getvalue()[: 40 if broken else None], "path": None})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pq.read_table(path).append_column("observation.images.image", pa.array(cells, type=kind))
    pq.write_table(table, path)
    shutil.rmtree(root / "videos")


def test_pictures_in_the_tables_are_read_too(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    for name in ("whole", "broken"):
        LeRobotWriter(tmp_path / name, SETTINGS, fps=20).add([shown(6)], tried=1)
        as_images(tmp_path / name, noise, broken=name == "broken")
    (found,) = read_dataset(tmp_path / "whole")
    np.testing.assert_array_equal(found.images["image"], noise)
    with pytest.raises(BadValue, match=r"an image of 'observation.images.image' of .* cannot be read"):
        read_dataset(tmp_path / "broken")


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (Image.new("I;16", (16, 16), 300), r"cannot be read: it is grey of 16 bits or more \(mode I;16\)"),
        (Image.new("L", (16, 16)), "cannot be read: it is no PNG and no JPEG$"),
        (Image.new("1", (10_000, 10_000)), "has 1 images of 10000 x 10000 in an episode; an image may have 4194304"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_picture_that_is_not_read_says_why(picture: Image.Image, says: str, tmp_path: Path) -> None:
    LeRobotWriter(tmp_path, SETTINGS, fps=20).add([shown(6)], tried=1)
    as_images(tmp_path, np.zeros((6, 16, 16, 3), np.uint8))
    buffer = io.BytesIO()
    picture.save(buffer, format="GIF" if picture.mode == "L" else "PNG")
    change_table(tmp_path, DATA, **{"observation.images.image": [{"bytes": buffer.getvalue(), "path": None}] * 6})
    with pytest.raises(BadValue, match=says):
        read_dataset(tmp_path)


@pytest.mark.parametrize("kind", ["texts", "pictures", "lists", "numbers"])
def test_a_small_table_does_not_fill_the_memory(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is equal in many rows stands in the file once."""
    pa, pq = lr.parquet()
    text = pa.array(["x" * 1000] * 2000)
    column = {
        "texts": text,
        "pictures": pa.StructArray.from_arrays([text.cast(pa.binary())], ["bytes"]),
        "lists": pa.array([[0.0] * 300_000]),
        "numbers": pa.array([7] * 300_000),
    }[kind]
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"other": column, "column": column}), path, compression="zstd")
    monkeypatch.setattr(lr, "MOST_BYTES", 1_000_000)
    assert path.stat().st_size < 10_000
    with pytest.raises(BadValue, match=r"file.parquet' has \d{7} bytes or more to be read at once; at most 1000000"):
        lr.read_table(path, ["column"])
    monkeypatch.setattr(lr, "MOST_BYTES", 10_000_000)
    assert lr.read_table(path, ["column"]).column("column").to_pylist() == column.to_pylist()


def test_a_video_that_ends_too_early_says_so_when_it_is_read(tmp_path: Path) -> None:
    root = tmp_path / "d"
    LeRobotWriter(root, SETTINGS, fps=20).add([shown(3)], tried=1)
    (path,) = root.glob("videos/*/*/*.mp4")
    write_video(path, [np.zeros((2, 16, 16, 3), np.uint8)], fps=20, crf=0)
    (episode,) = read_dataset(root)
    with pytest.raises(BadValue, match=r"file-000.mp4' ends before frame 3, which an episode of '.*d' has"):
        np.asarray(episode.images["image"])


def test_the_folder_says_what_lerobot_asks(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    root = tmp_path / "d"
    writer = LeRobotWriter(root, SETTINGS, fps=80)
    writer.add([shown(4, "reach"), shown(6, "push it")], tried=2)
    writer.add([shown(2, "reach")], tried=3)
    info = json.loads((root / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"], info["fps"]) == (3, 12, 2, 80)
    assert info["splits"] == {"train": "0:3"}
    assert info["features"]["action"]["shape"] == [3]
    assert info["features"]["observation.images.image"]["dtype"] == "video"
    # lerobot looks sentences up as the index of this table.
    tasks = pandas.read_parquet(root / "meta/tasks.parquet")
    assert tasks.loc["push it"].task_index == 1
    first = info["data_path"].format(chunk_index=0, file_index=0)
    frames = pandas.read_parquet(root / first)
    assert frames["episode_index"].tolist() == [0] * 4 + [1] * 6
    assert frames["frame_index"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert frames["timestamp"].dtype == np.float32
    assert frames["timestamp"][9] == np.float32(5 / 80)
    second = pandas.read_parquet(root / info["data_path"].format(chunk_index=0, file_index=1))
    assert second["index"].tolist() == [10, 11]
    rows = pandas.read_parquet(root / "meta/episodes/chunk-000/file-000.parquet")
    key = "videos/observation.images.image"
    assert rows[f"{key}/from_timestamp"].tolist() == [0.0, 4 / 80]
    assert rows[f"{key}/to_timestamp"].tolist() == [4 / 80, 10 / 80]
    assert rows["dataset_to_index"].tolist() == [4, 10]
    assert [one.tolist() for one in rows["tasks"]] == [["reach"], ["push it"]]
    stats = json.loads((root / "meta/stats.json").read_text())
    # State column 0 is 0..3, 0..5, 0..1: sum 22 of 12 frames.
    assert stats["observation.state"]["mean"][0] == pytest.approx(22 / 12)
    assert stats["observation.state"]["count"] == [12]
    assert stats["observation.images.image"]["max"] == [[[pytest.approx(40 / 255)]]] * 3


def test_a_collection_goes_on_under_its_own_settings_only(tmp_path: Path) -> None:
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=80).add([shown(3)], tried=5)
    writer = LeRobotWriter(tmp_path / "d", SETTINGS, fps=80)
    assert (writer.done.tried, writer.done.episodes, writer.done.frames) == (5, 1, 3)
    with pytest.raises(BadValue, match=r"noise=0.0, now it is 0.3"):
        LeRobotWriter(tmp_path / "d", {**SETTINGS, "noise": 0.3}, fps=80)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(BadValue, match="is not empty"):
        LeRobotWriter(tmp_path / "mine", SETTINGS, fps=80)


def change_table(root: Path, pattern: str, **columns: Any) -> None:
    """Give the table that `pattern` finds other columns; None takes one away."""
    pa, pq = lr.parquet()
    (path,) = root.glob(pattern)
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.drop([name]) if name in table.column_names else table
        table = table if values is None else table.append_column(name, pa.array(values))
    pq.write_table(table, path)


def change_info(root: Path, **values: Any) -> None:
    info = json.loads((root / lr.INFO_PATH).read_text()) | values
    given = {key: value for key, value in info.items() if value is not None}
    (root / lr.INFO_PATH).write_text(json.dumps(given))


NAN = float("nan")
FROM = "videos/observation.images.image/from_timestamp"
DATA, TASKS, ROWS = "data/*/*.parquet", lr.TASKS_PATH, "meta/episodes/*/*.parquet"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (shutil.rmtree, "no folder"),
        (lambda root: (root / lr.INFO_PATH).unlink(), "info.json"),
        (lambda root: change_info(root, codebase_version="v2.1"), "v2.1"),
        (lambda root: change_info(root, fps=0), "fps"),
        (lambda root: change_info(root, features={lr.ACTION: {"dtype": "float32"}}), "images"),
        (lambda root: change_info(root, total_episodes=2), "found 1"),
        (lambda root: change_info(root, video_path=None), "video_path"),
        (lambda root: (root / TASKS).unlink(), "FileNotFoundError"),
        (lambda root: change_table(root, TASKS, __index_level_0__=None), "one column of sentences"),
        (lambda root: change_table(root, TASKS, task_index=[7]), "KeyError"),
        (lambda root: change_table(root, ROWS, **{FROM: [-0.1]}), "episode 0"),
        (lambda root: change_table(root, DATA, action=[[0.0], [0.0, 0.0]]), "episode 0 .* vectors of one length"),
        (lambda root: change_table(root, DATA, action=[[0.0], [NAN]]), "episode 0 .* frame 1"),
        (lambda root: change_table(root, DATA, **{lr.STATE: [[NAN], [0.0]]}), "'observation.state' .* frame 0"),
        (lambda root: next(root.glob("videos/*/*/*.mp4")).write_bytes(b"no film"), "cannot be read as video"),
    ],
)
def test_a_damaged_dataset_is_one_line(tmp_path: Path, damage: Callable[[Path], object], says: str) -> None:
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=20).add([shown(2)], tried=1)
    damage(tmp_path / "d")
    with pytest.raises(BadValue, match=says):
        read_dataset(tmp_path / "d")


def test_what_other_writers_do_is_read(tmp_path: Path) -> None:
    root = tmp_path / "d"
    LeRobotWriter(root, SETTINGS, fps=20).add([shown(2)], tried=1)
    # A vector of one number as a number, another order of the shape, a column more beside the sentences.
    change_table(root, DATA, action=[0.25, 0.5])
    change_table(root, TASKS, comment_id=[1])
    features = json.loads((root / lr.INFO_PATH).read_text())["features"]
    features["observation.images.image"] |= {"shape": [3, 16, 16], "names": None}
    change_info(root, features=features)
    (found,) = read_dataset(root)
    np.testing.assert_array_equal(found.action_TA, [[0.25], [0.5]])
    np.testing.assert_array_equal(found.images["image"], shown(2).images["image"])


def film(path: Path, *encoding: str, frames: int = 3) -> Path:
    """A red video of 16 x 16 pixels, encoded as `encoding` says."""
    raw = ["-f", "lavfi", "-i", "color=c=red:size=16x16:rate=10", "-frames:v", str(frames)]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *raw, *encoding, str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.mark.parametrize(
    ("name", "codec", "pixels"), [("ten.mp4", "libx264", "yuv420p10le"), ("twelve.webm", "libvpx-vp9", "yuv420p12le")]
)
@pytest.mark.timeout(60)
def test_a_video_of_more_bits_is_read_as_eight(name: str, codec: str, pixels: str, tmp_path: Path) -> None:
    found_THWC = Video(film(tmp_path / name, "-c:v", codec, "-pix_fmt", pixels)).read(0, 5)
    assert found_THWC.shape == (3, 16, 16, 3)
    assert np.abs(found_THWC.astype(int) - [255, 0, 0]).max() <= 8


@pytest.mark.timeout(60)
def test_a_video_with_a_damaged_frame_is_refused(tmp_path: Path) -> None:
    """ffmpeg leaves the frame out, and pictures after it would go with the actions of the frame before."""
    path = film(tmp_path / "av1.mp4", "-c:v", "libsvtav1", "-g", "2", "-s", "64x64", frames=40)
    data = bytearray(path.read_bytes())
    place = data.index(b"mdat") + 4
    place += (len(data) - place) // 3
    data[place : place + 100] = b"\7" * 100
    path.write_bytes(data)
    with pytest.raises(BadValue, match=r"av1.mp4' cannot be read as video"):
        Video(path).read(0, 41)


HLS = """#EXTM3U
#EXT-X-TARGETDURATION:1
#EXTINF:1,
{other}
#EXT-X-ENDLIST
"""


@pytest.mark.parametrize("playlist", [HLS, "ffconcat version 1.0\nfile {other}\n"])
def test_a_list_of_other_files_is_no_video(playlist: str, tmp_path: Path) -> None:
    other = film(tmp_path / "other.mp4", "-c:v", "libx264")
    path = tmp_path / "list.mp4"
    path.write_text(playlist.format(other=other.name))
    with pytest.raises(BadValue, match=r"list.mp4' cannot be read as video"):
        Video(path).read(0, 1)


def box(kind: bytes, *content: bytes) -> bytes:
    """Return a part of an MP4 file."""
    data = b"".join(content)
    return struct.pack(">I", 8 + len(data)) + kind + data


def numbers(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def track(frames: int) -> bytes:
    """Return a track of an MP4 file that says it has so many frames."""
    entry = box(b"png ", bytes(24), struct.pack(">HH", 64, 64), bytes(50))
    sizes = box(b"stsz", numbers(0, 1, frames))
    places = box(b"stsc", numbers(0, 1, 1, frames, 1)) + box(b"stco", numbers(0, 1, 48))
    table = box(b"stbl", box(b"stsd", numbers(0, 1), entry), box(b"stts", numbers(0, 1, frames, 1)), sizes, places)
    head = box(b"mdhd", numbers(0, 0, 0, 10, frames, 0)) + box(b"hdlr", numbers(0, 0), b"vide", bytes(13))
    return box(b"trak", box(b"mdia", head, box(b"minf", table)))


@pytest.mark.timeout(60)
def test_a_small_video_of_many_frames_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ffmpeg keeps 24 bytes a frame before it reads the first."""
    monkeypatch.setattr(lerobot_video, "_MOST_MEMORY", 200 * 2**20, raising=False)
    path = tmp_path / "many.mp4"
    path.write_bytes(box(b"ftyp", b"isom", numbers(512)) + box(b"moov", *[track(2_000_000)] * 10))
    with pytest.raises(BadValue, match=r"many.mp4' cannot be read as video: ") as refused:
        Video(path).read(0, 1)
    assert "received no packets" not in str(refused.value), "ffmpeg had room for all of them"


FAILING = """#!/bin/sh
{ffmpeg} "$@" || exit
for last; do :; done
case "$*" in *libx264*) {then};; esac
"""


@pytest.mark.parametrize(
    ("then", "says"),
    [
        (
            "echo '[out#0/mp4 @ 0x1] Error closing file: No space left on device' >&2; exit 228",
            "Error closing file: No sp",
        ),
        ("kill -9 $$", "ffmpeg ended with status -9"),
    ],
)
def test_a_video_that_ffmpeg_does_not_finish_is_not_counted(
    then: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, root = tmp_path / "ffmpeg", tmp_path / "d"
    script.write_text(FAILING.format(ffmpeg=imageio_ffmpeg.get_ffmpeg_exe(), then=then))
    script.chmod(0o755)
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=20).add([shown(2)], tried=1)
    with monkeypatch.context() as disk_is_full:
        disk_is_full.setenv("IMAGEIO_FFMPEG_EXE", str(script))
        with pytest.raises(BadValue, match=rf"^cannot write the video '.*file-001.mp4': {says}"):
            LeRobotWriter(root, SETTINGS, fps=20).add([shown(3)], tried=2)
        with pytest.raises(BadValue, match=r"^cannot write the video '.*file-000.mp4'"):
            LeRobotWriter(tmp_path / "first", SETTINGS, fps=20).add([shown(3)], tried=2)
    assert not list((tmp_path / "first").iterdir())
    writer = LeRobotWriter(root, SETTINGS, fps=20)
    assert (writer.done.episodes, writer.done.tried, len(read_dataset(root))) == (1, 1, 1)
    writer.add([shown(3)], tried=2)
    assert len(read_dataset(root)) == 2


@pytest.mark.parametrize("step", ["_write_tasks", "_write_stats", "_write_info"])
@pytest.mark.parametrize("whole", [0, 2])
def test_an_interrupted_collection_goes_on_and_is_read_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, whole: int
) -> None:
    root = tmp_path / "d"
    episodes = [shown(3, shade=10 * number) for number in range(4)]
    if whole:
        LeRobotWriter(root, SETTINGS, fps=20).add(episodes[:whole], tried=whole)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    writer = LeRobotWriter(root, SETTINGS, fps=20)
    monkeypatch.setattr(writer, step, die)
    with pytest.raises(KeyboardInterrupt):
        writer.add(episodes[whole:], tried=4)
    if whole:
        assert len(read_dataset(root)) == whole
    again = LeRobotWriter(root, SETTINGS, fps=20)
    assert again.done.episodes == again.done.tried == whole
    again.add(episodes[whole:], tried=4)
    for one, other in zip(episodes, read_dataset(root), strict=True):
        np.testing.assert_array_equal(one.images["image"], other.images["image"])


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("../../{chunk_index}.parquet", "which is no path inside"),
        ("/etc/passwd", "which is no path inside"),
        ("data/{chunk_index:99999999999d}.parquet", "it must be like data/"),
        ("data/{chunk_index.__class__}.parquet", "it must be like data/"),
        ("out/file", "which links to a place outside"),
    ],
)
@pytest.mark.parametrize("kind", ["data_path", "video_path"])
def test_a_pattern_names_files_of_the_dataset_alone(kind: str, pattern: str, says: str, tmp_path: Path) -> None:
    root = tmp_path / "d"
    LeRobotWriter(root, SETTINGS, fps=20).add([shown(2)], tried=1)
    (root / "out").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    info = json.loads((root / lr.INFO_PATH).read_text())
    (root / lr.INFO_PATH).write_text(json.dumps({**info, kind: pattern}))
    with pytest.raises(BadValue, match=says):
        read_dataset(root)


def test_pictures_too_large_for_memory_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=20).add([shown(4)], tried=1)
    for limit, says in (("MOST_PIXELS", "cannot be read as video|pixels"), ("MOST_BYTES", "4 images of 16 x 16")):
        with monkeypatch.context() as smaller:
            smaller.setattr(lr, limit, 16 * 16 - 1 if limit == "MOST_PIXELS" else 16 * 16 * 3 * 4 - 1)
            smaller.setattr(lr, "read_groups", lambda file, path, groups, columns=None: file.read(columns))
            with pytest.raises(BadValue, match=says):
                np.asarray(read_dataset(tmp_path / "d")[0].images["image"])
    with monkeypatch.context() as smaller:
        smaller.setattr(lr, "MOST_ROWS", 0)
        with pytest.raises(BadValue, match="has 1 rows; at most 0"):
            read_dataset(tmp_path / "d")


@pytest.mark.parametrize("name", ["data/chunk-000/file-000.parquet", "meta/vla_zoo.json"])
@pytest.mark.parametrize("content", [b"", b"{}", b"PAR1 half", b'{"episodes": "x"}'])
def test_a_damaged_dataset_is_not_gone_on_with(name: str, content: bytes, tmp_path: Path) -> None:
    LeRobotWriter(tmp_path / "d", SETTINGS, fps=20).add([shown(2)], tried=1)
    (tmp_path / "d" / name).write_bytes(content)
    with pytest.raises(BadValue, match=f"{tmp_path}/d"):
        LeRobotWriter(tmp_path / "d", SETTINGS, fps=20)


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["top"], {"image": "top"}),
        (["image", "image2"], {"image": "image", "wrist_image": "image2"}),
        (["image2", "image", "wrist_image"], {"image": "image", "wrist_image": "wrist_image"}),
    ],
)
def test_cameras_have_lerobots_names_of_them_too(names: list[str], read: dict[str, str], tmp_path: Path) -> None:
    features = {lr.camera_key(name): {"dtype": "video"} for name in names}
    info = lr.DatasetInfo(features=features, fps=10, total_episodes=1, data_path="")
    assert cameras_of(info, tmp_path) == {name: lr.camera_key(key) for name, key in read.items()}


def test_one_process_collects_into_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "d"):
        with pytest.raises(BadValue, match="another process collects into"), locked(tmp_path / "a" / "d"):
            pass
        (tmp_path / "a" / "d" / "x").touch()
    assert (tmp_path / "a" / "d" / "x").is_file()
    with locked(tmp_path / "b" / "d"):
        pass
    assert not (tmp_path / "b").exists()


def test_vector_statistics_by_hand() -> None:
    stats = lr.vector_stats(np.array([[0.0], [1.0], [2.0]], np.float32))
    assert stats["mean"] == [1.0]
    assert stats["std"] == [pytest.approx((2 / 3) ** 0.5)]
    assert stats["q50"] == [1.0]
    assert stats["q10"] == [pytest.approx(0.2)]
    assert stats["count"] == [3]


def test_what_a_process_killed_at_its_start_leaves_is_no_obstacle(tmp_path: Path) -> None:
    for folder in ("meta", "data/chunk-000"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "meta" / f".file.partial-{2**22 + 1}").write_text("half")  # of a number that no process has
    with locked(tmp_path):
        LeRobotWriter(tmp_path, SETTINGS, fps=20).add([shown(2)], tried=1)
    assert len(read_dataset(tmp_path)) == 1
