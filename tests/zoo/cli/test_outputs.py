"""Where results go: asked before simulators start, and never lost when writing fails all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from zoo.agents.measuring import write_or_print
from zoo.cli.main import main

TOY = ["--env", "Toy-Reach", "--policy", "nano", "--device", "cpu"]


@pytest.mark.parametrize(
    ("command", "output", "says"),
    [
        ("evaluate", "folder", "it is a folder"),
        ("evaluate", "file/x.json", "is a file, no folder"),
        ("record_video", "film.txt", "must end in .mp4"),
        ("record_video", "file/x.mp4", "is a file, no folder"),
        ("enjoy", "film.jpg", "must end in .mp4"),
        ("enjoy", "file/x.mp4", "is a file, no folder"),
    ],
)
def test_a_bad_destination_is_refused_before_anything_starts(
    command: str,
    output: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")

    def no_start(*args: object, **options: object) -> None:
        raise AssertionError("simulators were started")

    monkeypatch.setattr("zoo.agents.agent.open_agent", no_start)
    assert main([command, *TOY, "-o", output]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert f"cannot write '{output}'" in line
    assert says in line


def test_results_that_cannot_be_written_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match=r"cannot write '.*': .*; what belongs there was printed instead"):
        write_or_print(tmp_path / "file" / "x.json", json.dumps({"a": 1}))
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_results_stand_beside_former_ones(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("0", "1", "2"):
        argv = ["evaluate", *TOY, "--eval-episodes", "1", "--temperature", "1", "--seed", seed]
        assert main(argv) == 0
    files = [f"results{number}.json" for number in ("-1", "-2", "")]
    assert [json.loads((cwd / file).read_text())["seed"] for file in files] == [0, 1, 2]
    assert "the former results.json is kept as results-2.json" in capsys.readouterr().out


def test_results_are_told_before_their_film_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    film = tmp_path / "film.mp4"

    def disk_full(self: object, path: Path, fps: float) -> None:
        path.write_bytes(b"half a film")
        raise OSError("no space left")

    monkeypatch.setattr("vla_gym.video.VideoGrid._encode", disk_full)
    assert main(["record_video", *TOY, "--episodes", "1", "-o", str(film)]) == 2
    printed = capsys.readouterr()
    assert "of 1 episodes solved" in printed.out
    assert f"cannot write the video '{film}': no space left" in printed.err
    assert not film.exists()
