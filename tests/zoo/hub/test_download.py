from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.zoo.hub.test_upload import BASE, hub, push_base, pytestmark
from tests.zoo.loopback_hub import LoopbackHub, Repo
from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue
from zoo import load_from_hub
from zoo.cli.main import guarded, main
from zoo.config import gym_packages
from zoo.config.run_config import to_plain
from zoo.hub.download import download_run, is_remote, remote_resume_point

__all__ = ["hub", "pytestmark"]


def test_a_hub_id_is_no_path_that_is_there(cwd: Path) -> None:
    assert is_remote("org/name@v1")
    assert not is_remote("logs/ppo/Toy-Reach_1")
    (cwd / "org").mkdir()
    assert not is_remote("org/name")


def test_weights_alone_are_no_run_to_go_on_with(hub: LoopbackHub) -> None:
    push_base()
    with pytest.raises(BadValue, match=f"'{BASE}' holds no run"):
        remote_resume_point(BASE)


@pytest.mark.parametrize("token", ["hf_right", None])
def test_a_gated_repository_says_what_to_accept(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    hub.repos["org/gated"] = Repo(private=False, commits={"0" * 40: {"config.json": b"{}"}}, gated=True)
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "none")
    with pytest.raises(BadValue, match=r"'org/gated' .*it is gated: accept its terms on its page at http") as caught:
        download_run("org/gated")
    assert "write access" not in str(caught.value)


def test_what_is_not_there_is_named(hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    push_base()
    capsys.readouterr()
    for argv, message in (
        (["me/nothing"], "has no such repository or revision, or the token may not see it (404)"),
        (["./here"], "'./here' is no Hub id"),
        ([BASE], f"'{BASE}' holds no run (it has no config.yml); as a policy it goes with: vla-zoo evaluate"),
        ([f"{BASE}@v9"], "at revision 'v9'"),
    ):
        assert guarded(load_from_hub.run, argv) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not Path("logs").exists()


def published(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """A published run that `download_run` finds in `folder`; `changes` are of its configuration."""
    folder.mkdir(parents=True)
    config = to_plain(toy_config(n_timesteps=9))
    (folder / "config.yml").write_text(yaml.safe_dump({**config, **changes}))
    (folder / "args.yml").write_text("gym_packages: [planted]\n")
    monkeypatch.setattr("zoo.hub.download.fetch", lambda *_, **__: folder)


@pytest.mark.parametrize(
    "changes", [{"algo": "../../../evil"}, {"algo": "/evil"}, {"env": "../../../evil"}, {"env": "x/../../../../evil"}]
)
def test_a_published_run_is_written_into_the_log_folder_alone(
    changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published(tmp_path / "cache", monkeypatch, **changes)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["load_from_hub", "me/run", "-f", "a/b/c/logs"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "evil" in line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "  vla-zoo train -i logs/ppo/Toy-Reach_1 -n 18   (train on)\n"),
        (
            {"algo": "sft", "algo_kwargs": {"dataset": "demos"}},
            "  vla-zoo sft -i logs/sft/Toy-Reach_1   (go on; --dataset FOLDER says where",
        ),
    ],
)
def test_what_is_not_finished_goes_on_with_its_own_command(
    changes: dict[str, object],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published(tmp_path / "cache", monkeypatch, **changes)
    state = tmp_path / "cache/checkpoints/step_9/training_state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["load_from_hub", "me/run"]) == 0
    assert says in capsys.readouterr().out


def test_a_publisher_s_modules_are_imported_when_asked_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(gym_packages, "_asked", {})
    monkeypatch.chdir(tmp_path)
    Path("planted.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    published(tmp_path / "cache" / "models--me--run" / "snapshots" / "c", monkeypatch)
    assert main(["load_from_hub", "me/run"]) == 0
    for run in ("logs/ppo/Toy-Reach_1", "cache/models--me--run/snapshots/c"):
        for command in ("train", "evaluate", "enjoy", "record_video"):
            assert main([command, "-i", run]) == 2
            assert "its publisher's environment needs 'planted'" in capsys.readouterr().err
    assert not Path("ran").exists()
    main(["evaluate", "-i", "logs/ppo/Toy-Reach_1", "--gym-packages", "planted"])
    assert "holds no policy" in capsys.readouterr().err
    assert Path("ran").exists()
