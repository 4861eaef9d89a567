from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sample() -> Path:
    """A folder with a part of the published files; skips the test where there is none."""
    beside = Path(__file__).resolve().parents[5] / "shared" / "assets" / "plate25"
    folder = Path(os.environ.get("MANISKILL_ASSET_DIR") or beside)
    if not (folder / "carrot" / "more_carrot").is_dir():
        pytest.skip("none of the published files are here (MANISKILL_ASSET_DIR)")
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any of the published files."""
    monkeypatch.delenv("MANISKILL_ASSET_DIR", raising=False)
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path / "maniskill"))
    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path
