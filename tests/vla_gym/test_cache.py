from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.cache import cache_dir, library_caches


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    both = {"VLA_ZOO_CACHE": "/a", "XDG_CACHE_HOME": "/b"}
    assert cache_dir(both) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/vla-zoo")
    assert cache_dir({}) == tmp_path / ".cache" / "vla-zoo"
    assert not cache_dir({}).exists()
    monkeypatch.setenv("VLA_ZOO_CACHE", "~/here")
    assert cache_dir() == tmp_path / "here"


def test_other_libraries_stay_in_our_folder(tmp_path: Path) -> None:
    folders = library_caches({"VLA_ZOO_CACHE": str(tmp_path), "LIBERO_CONFIG_PATH": "/elsewhere"})
    assert folders == {
        "LIBERO_CONFIG_PATH": str(tmp_path / "libero-config"),
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
    }
    assert all(Path(folder).is_dir() for folder in folders.values())
    own = str(tmp_path / "own")
    assert library_caches({"VLA_ZOO_CACHE": str(tmp_path), "NUMBA_CACHE_DIR": own})["NUMBA_CACHE_DIR"] == own
