"""The command: exit codes and what it refuses; its checks and replays have tests in `diagnostics/`."""

from __future__ import annotations

import pytest

from vla_gym.errors import BadValue, MissingDependency, UnknownName
from zoo.diagnostics import system_checks
from zoo.doctor import run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what takes seconds or a network."""
    for name in ("hub", "vulkan_device", "gl_backend", "first_picture"):
        monkeypatch.setattr(system_checks, name, lambda *args: "here")


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

    monkeypatch.setattr(system_checks, "vulkan_device", no_vulkan)
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
        (["--oracle", "--env", "MetaWorld/reach", "-params", "protocl:lerobot"], UnknownName, "'protocol'"),
    ],
)
def test_what_it_refuses(argv: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(argv)
