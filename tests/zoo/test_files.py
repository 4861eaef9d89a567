from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.zoo.stand_ins import finished
from zoo.files import atomic_file, quoted, write_text
from zoo.runs.loggers import JsonLines
from zoo.runs.monitor import MonitorFile


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "a\r\nb\n")
    assert path.read_bytes() == b"a\r\nb\n"

    def cut_off() -> None:
        with atomic_file(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    assert path.read_bytes() == b"a\r\nb\n"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def write_monitor(folder: Path, keep_until: int | None = None) -> None:
    file = MonitorFile(folder, "Toy-Reach", keep_until=keep_until)
    file.add(finished(0.0, 1), 20)
    file.close()


def write_metrics(folder: Path, keep_until: int | None = None) -> None:
    file = JsonLines(folder, keep_until=keep_until)
    file.write({"a": 1.0}, {}, 20)
    file.close()


@pytest.mark.parametrize("write", [write_monitor, write_metrics])
def test_a_kill_while_a_history_is_cut_back_leaves_it(
    write: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()

    def cut_off(path: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", cut_off)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, keep_until=10)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("path", ["logs/ppo/Toy-Reach_1", "out logs/it's 1", "$HOME/x"])
def test_a_path_is_one_word(path: str) -> None:
    assert shlex.split(f"zoo.evaluate -i {quoted(Path(path))} -P") == ["zoo.evaluate", "-i", path, "-P"]
    assert quoted("logs/ppo/Toy-Reach_1") == "logs/ppo/Toy-Reach_1"
