from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from vla_gym import make_vec
from vla_gym.errors import BadValue
from vla_gym.system.paths import (
    cache_dir,
    check_destination,
    check_folder,
    check_writable,
    library_caches,
    locked,
    read_hashed,
    read_json,
    write_atomic,
    write_hashed,
    write_json,
)


def test_the_order_of_cache_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir({"VLA_ZOO_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/vla-zoo")
    assert cache_dir({}) == tmp_path / ".cache" / "vla-zoo"
    monkeypatch.setenv("VLA_ZOO_CACHE", "~/here")
    assert cache_dir() == tmp_path / "here"


def test_other_libraries_stay_in_our_folder(tmp_path: Path) -> None:
    folders = library_caches({"VLA_ZOO_CACHE": str(tmp_path), "LIBERO_CONFIG_PATH": "/elsewhere"})
    assert folders["LIBERO_CONFIG_PATH"] == str(tmp_path / "libero-config")
    assert Path(folders["NUMBA_CACHE_DIR"]).parent == tmp_path / "numba"
    assert all(Path(folder).is_dir() for folder in folders.values())
    own = str(tmp_path / "own")
    assert library_caches({"VLA_ZOO_CACHE": str(tmp_path), "NUMBA_CACHE_DIR": own})["NUMBA_CACHE_DIR"] == own


def test_a_folder_that_cannot_be_written_is_named_with_its_variable(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "x", Path("/proc")):
        with pytest.raises(BadValue, match=rf"{folder} .*VLA_ZOO_CACHE"):
            check_writable(folder)
    with pytest.raises(BadValue, match=r"own .*NUMBA_CACHE_DIR"):
        library_caches({"VLA_ZOO_CACHE": str(tmp_path), "NUMBA_CACHE_DIR": str(file / "own")})


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(stream: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(BadValue, match=r"a\.lock .*VLA_ZOO_CACHE"), locked(tmp_path / "a.lock"):
        pass


def test_other_users_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "a" / "b", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o644
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data.replace(b"1", b"2"), lambda data: b""])
def test_damaged_cached_files_count_as_missing(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "file"
    write_json(file, {"a": [1, [1.5]]})
    assert read_json(file) == {"a": (1, (1.5,))}
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(FileNotFoundError, match="damaged"):
        read_json(file)
    write_hashed(file, b"111")
    assert read_hashed(file) == b"111"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(FileNotFoundError, match="damaged"):
        read_hashed(file)


@pytest.mark.sim
@pytest.mark.parametrize("env_id", ["LIBERO-Spatial/0", "MetaWorld/reach", "ManiSkill/PickCube"])
def test_a_cache_that_cannot_be_written_ends_in_one_line(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLA_ZOO_CACHE", "/proc/x")
    with pytest.raises(BadValue, match=r"/proc/x/\S+ .*VLA_ZOO_CACHE"):
        make_vec(env_id, 1, num_workers=0)


def test_a_file_may_go_into_folders_that_are_still_to_be_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "video.MP4"
    assert check_destination(path, suffix=".mp4") == path
    check_folder(tmp_path / "new", what="a dataset", flag="-o")
    assert not list(tmp_path.iterdir())
    check_destination(Path("/dev/null"))


@pytest.mark.parametrize(
    ("name", "suffix", "named"),
    [
        ("folder", "", r"folder/results\.json"),
        ("folder", ".mp4", r"folder/results\.mp4"),
        ("video.txt", ".mp4", r"video\.mp4"),
        ("file/folder/results.json", "", "'.*/file' is a file"),
        ("n" * 300, "", "too long"),
    ],
)
def test_where_no_file_can_go_is_told_with_the_reason(name: str, suffix: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match=named):
        check_destination(tmp_path / name, suffix=suffix)
    if name.startswith(("file", "n")):
        with pytest.raises(BadValue, match=f"a dataset .*{named}.*-o"):
            check_folder(tmp_path / name, what="a dataset", flag="-o")
