from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from vla_gym.system.extras import install_command


def test_an_installed_distribution_is_asked_for_its_extra() -> None:
    assert install_command("libero") == 'pip install "vla-zoo[libero]"'


def test_a_checkout_that_is_not_installed_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    checkout = Path(__file__).parents[3]
    assert (checkout / "pyproject.toml").is_file()
    assert install_command("plots") == f'pip install -e "{checkout}[plots]"'
