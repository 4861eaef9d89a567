"""The command: exit codes and what it refuses; its checks and replays have tests of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vla_gym.errors import BadValue, MissingDependency, UnknownName
from zoo import diagnostics
from zoo.doctor import run

AGENTS = Path(__file__).resolve().parents[2] / "agents"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what takes seconds or a network."""
    for name in ("hub", "vulkan_device", "gl_backend", "first_image"):
        monkeypatch.setattr(diagnostics, name, lambda *args: "here")


@pytest.mark.usefixtures("quick")
def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "ManiSkill/" in line] == ["ok"]
    assert lines[-1] == "all that is needed is here"


@pytest.mark.usefixtures("quick")
def test_what_is_missing_makes_it_1_unless_nothing_needs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_vulkan() -> str:
        raise MissingDependency("no driver")

    monkeypatch.setattr(diagnostics, "vulkan_device", no_vulkan)
    assert run([]) == 1
    assert "missing  Vulkan" in capsys.readouterr().out
    assert run(["--env", "MetaWorld/reach"]) == 0
    assert "without  Vulkan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "error", "words"),
    [
        (["--env", "MetaWorld/reech"], UnknownName, "Did you mean 'MetaWorld/reach'"),
        (["--episodes", "3"], BadValue, "it needs --oracle"),
        (["--oracle"], BadValue, "--env is missing"),
        (["--oracle", "--env", "Toy-Reach"], BadValue, "no scripted expert"),
        (["--oracle", "--env", "MetaWorld/reach", "--episodes", "51"], BadValue, "1 .. 50"),
        (["--oracle", "--env", "Toy-Reach", "-params", "episodes:5"], UnknownName, "no option of Toy-Reach 'episodes'"),
    ],
)
def test_what_it_refuses(argv: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(argv)


def test_a_policy_folder_is_compared_byte_by_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(AGENTS / "sft" / "MetaWorld-window-open", folder)
    assert run(["--policy", str(folder)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["ok", "config.json"],
        ["ok", "model.safetensors"],
    ]
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BadValue, match=r"model\.safetensors has other content"):
        run(["--policy", str(folder)])
    (folder / "certificate.json").unlink()
    with pytest.raises(BadValue, match="nothing says what it should hold"):
        run(["--policy", str(folder)])


def test_a_run_folder_stands_for_its_policy(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = "agents/sft/MetaWorld-window-open"
    assert run(["--policy", shipped]) == 0
    shutil.copytree(AGENTS / "sft" / "MetaWorld-window-open", "run/best")
    for name in ("config.yml", "args.yml"):
        Path("run/best", name).rename(Path("run", name))
    capsys.readouterr()
    assert run(["--policy", "run"]) == 0
    assert "ok       model.safetensors" in capsys.readouterr().out
    Path("run/best").rename("run/other")
    with pytest.raises(BadValue, match="'run' holds no policy"):
        run(["--policy", "run"])


@pytest.mark.parametrize("flags", [["--env", "MetaWorld/reach"], ["--oracle"]])
def test_a_policy_folder_is_looked_at_alone(flags: list[str]) -> None:
    with pytest.raises(BadValue, match="leave --env and --oracle out"):
        run(["--policy", "nano", *flags])
