"""Commands log to the screen, also where a test calls one without `zoo.cli.main.guarded`; folders that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.runs.progress import log_to_screen

log_to_screen()


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of Toy-Reach."""
    from tests.zoo.imitation.test_families import collect_demos

    return collect_demos(tmp_path_factory.mktemp("demos") / "toy")
