"""A mistake is one line; a launcher gets it in the file it asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zoo.cli.failures import tell


def test_one_process_tells_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    tell("no suite\n  of that name", everywhere=False)
    assert capsys.readouterr().err == "error: no suite of that name\n"


@pytest.mark.parametrize(("everywhere", "printed"), [(True, "error: rank 1: lost\n"), (False, "")])
def test_a_rank_names_itself_and_leaves_the_line_for_the_launcher(
    everywhere: bool,
    printed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "error.json"
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_ERROR_FILE", str(file))):
        monkeypatch.setenv(name, value)
    tell("lost", everywhere=everywhere)
    assert capsys.readouterr().err == printed
    assert json.loads(file.read_text())["message"] == "lost"
    # The first reason is the one that counts.
    tell("and then", everywhere=False)
    assert json.loads(file.read_text())["message"] == "lost"
