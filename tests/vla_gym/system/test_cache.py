from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from vla_gym import make_vec
from vla_gym.errors import BadValue
from vla_gym.system import cache
from vla_gym.system.cache import cache_dir, check_writable, library_caches, locked, write_atomic


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    both = {"VLA_ZOO_CACHE": "/a", "XDG_CACHE_HOME": "/b"}
    assert cache_dir(both) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/vla-zoo")
    assert cache_dir({}) == tmp_path / ".cache" / "vla-zoo"
    assert not cache_dir({}).exists()
    monkeypatch.setenv("VLA_ZOO_CACHE", "~/here")
    assert cache_dir() == tmp_path / "here"


def test_a_user_without_a_home_is_told_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a number that a container runs as, unknown to its list of users."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(BadValue, match=r"^no home folder is known .*: set VLA_ZOO_CACHE to"):
        cache_dir({})
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/vla-zoo")


def test_other_libraries_stay_in_our_folder(tmp_path: Path) -> None:
    folders = library_caches({"VLA_ZOO_CACHE": str(tmp_path), "LIBERO_CONFIG_PATH": "/elsewhere"})
    assert folders["LIBERO_CONFIG_PATH"] == str(tmp_path / "libero-config")
    assert Path(folders["NUMBA_CACHE_DIR"]).parent == tmp_path / "numba"
    assert all(Path(folder).is_dir() for folder in folders.values())
    own = str(tmp_path / "own")
    assert library_caches({"VLA_ZOO_CACHE": str(tmp_path), "NUMBA_CACHE_DIR": own})["NUMBA_CACHE_DIR"] == own


def test_machines_of_other_processors_share_no_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba's index of a function may be overwritten by another machine's; then one would run the other's code."""

    def numba_folder(cpu_info: str) -> str:
        (tmp_path / "cpuinfo").write_text(cpu_info)
        return library_caches({"VLA_ZOO_CACHE": str(tmp_path)})["NUMBA_CACHE_DIR"]

    monkeypatch.setattr(cache, "CPU_INFO", tmp_path / "cpuinfo")
    one = "processor : 0\nmodel name : A\ncpu MHz : {}\nflags : avx2\n"
    assert numba_folder(one.format(2000)) == numba_folder(one.format(2500) + one.format(1800))
    assert numba_folder(one) != numba_folder(one.replace("avx2", "avx2 avx512f"))
    assert numba_folder(one) != numba_folder(one.replace(": A", ": B"))


def test_a_folder_that_cannot_be_written_is_named_with_its_variable(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    file = tmp_path / "file"
    file.touch()
    for folder, reason in (
        (file, "File exists"),
        (file / "x", "Not a directory"),
        (Path("/proc"), "No such"),
    ):
        with pytest.raises(BadValue, match=rf"cannot write to {folder} \({reason}.*\): set VLA_ZOO_CACHE to a"):
            check_writable(folder)
    with pytest.raises(BadValue, match=r"libero-config .*: set VLA_ZOO_CACHE"):
        library_caches({"VLA_ZOO_CACHE": str(file)})
    with pytest.raises(BadValue, match=r"own .*: set NUMBA_CACHE_DIR"):
        library_caches({"VLA_ZOO_CACHE": str(tmp_path), "NUMBA_CACHE_DIR": str(file / "own")})


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(stream: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    where = r"^cannot lock \S+/a\.lock \(No locks available\): set VLA_ZOO_CACHE to"
    with pytest.raises(BadValue, match=where), locked(tmp_path / "a.lock"):
        pass


def test_other_users_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "a" / "b", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o644
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.sim
@pytest.mark.parametrize("env_id", ["LIBERO-Spatial/0", "MetaWorld/reach", "ManiSkill/PickCube"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_cache_that_cannot_be_written_ends_in_one_line(
    env_id: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLA_ZOO_CACHE", "/proc/x")
    with pytest.raises(BadValue, match=r"^cannot write to /proc/x/\S+ \(No such file.*\): set VLA_ZOO_CACHE to"):
        make_vec(env_id, 1, num_workers=num_workers)
