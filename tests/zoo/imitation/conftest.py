"""Demonstrations that the tests of fine-tuning share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.imitation.test_families import collect_demos


@pytest.fixture(scope="session")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect_demos(tmp_path_factory.mktemp("demos") / "toy")
