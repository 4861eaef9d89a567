from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.hub.test_upload import BASE, hub, push_base, pytestmark
from tests.zoo.loopback_hub import LoopbackHub
from vla_gym.errors import BadValue
from zoo import load_from_hub
from zoo.cli.main import guarded
from zoo.hub.download import is_remote, remote_resume_point

__all__ = ["hub", "pytestmark"]


def test_a_hub_id_is_no_path_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_remote("org/name@v1")
    assert not is_remote("logs/ppo/Toy-Reach_1")
    (tmp_path / "org").mkdir()
    assert not is_remote("org/name")


def test_weights_alone_are_no_run_to_go_on_with(hub: LoopbackHub) -> None:
    push_base()
    with pytest.raises(BadValue, match=f"'{BASE}' holds no run"):
        remote_resume_point(BASE)


def test_what_is_not_there_is_named(hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    push_base()
    capsys.readouterr()
    for argv, message in (
        (["me/nothing"], "has no such repository or revision, or the token may not see it (404)"),
        (["./here"], "'./here' is no Hub id"),
        ([BASE], f"'{BASE}' holds no run (it has no config.yml); use it as --policy {BASE}"),
        ([f"{BASE}@v9"], "at revision 'v9'"),
    ):
        assert guarded(load_from_hub.run, argv) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not Path("logs").exists()
