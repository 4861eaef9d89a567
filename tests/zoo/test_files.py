from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.stand_ins import finished
from zoo import files
from zoo.files import atomic_file, recover_folders, write_folder, write_text
from zoo.runs.loggers import JsonLines
from zoo.runs.monitor import MonitorFile


class Killed(BaseException):
    """Stands in for SIGKILL."""


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


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    def full_in_rust(path: Path) -> None:
        raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    for fail in (full, full_in_rust):
        with pytest.raises(OSError, match="No space left") as caught:
            write_folder(tmp_path / "folder", fail)
        assert (caught.value.errno, caught.value.filename) == (28, str(tmp_path / "folder"))
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "kept"]


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("killed_at", range(10))
def test_a_kill_at_any_step_leaves_the_folder_as_it_was_or_is_to_be(
    killed_at: int, can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes a name or syncs counts as a step; what a dead process leaves is put in order."""
    folder = tmp_path / "best"
    write_folder(folder, lambda path: (path / "old").touch())
    steps = iter(range(100))

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            if next(steps) >= killed_at:
                raise Killed
            return call(*args, **options)

        return wrapped

    with monkeypatch.context() as at_work:
        at_work.setattr(os, "getpid", lambda: 2**22 + 1)  # of no process
        if not can_exchange:
            at_work.setattr(files, "_exchange", lambda one, other: False)
        else:
            at_work.setattr(files, "_exchange", dying(files._exchange))
        for owner, name in ((Path, "mkdir"), (Path, "rename"), (files, "_sync"), (shutil, "rmtree")):
            at_work.setattr(owner, name, dying(getattr(owner, name)))
        with suppress(Killed):
            write_folder(folder, lambda path: (path / "new").write_text(""))
    recover_folders(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert [path.name for path in folder.iterdir()] in (["old"], ["new"])


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    host = files._HOST
    files._temporary(tmp_path / "best", "partial").mkdir()
    (tmp_path / f".best.partial-{host}-{os.getppid()}-01234567").mkdir()
    (tmp_path / f".best.partial-another_machine-{2**22 + 1}").mkdir()
    (tmp_path / ".hidden").mkdir()
    before = sorted(tmp_path.iterdir())
    recover_folders(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / f".best.replaced-{2**22 + 1}").mkdir()  # as version 0.1 named it
    recover_folders(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "best"])


def test_who_alone_writes_folders_puts_those_of_other_machines_in_order(tmp_path: Path) -> None:
    (tmp_path / ".best.replaced-another_machine-1-01234567").mkdir()
    (tmp_path / ".step_8.partial-another_machine-1-01234567").mkdir()
    evaluating = tmp_path / ".results.json.partial-another_machine-1-01234567"
    evaluating.touch()
    recover_folders(tmp_path, alone=True)
    assert sorted(tmp_path.iterdir()) == [evaluating, tmp_path / "best"]


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    # Root's `-o /dev/null` would otherwise leave the machine with a file of that name.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "results")
    assert os.read(reader, 100) == b"results"
    os.close(reader)
    assert pipe.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]
