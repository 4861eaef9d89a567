from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zoo.evaluation.evaluator import Frame
from zoo.evaluation.video import EvaluationVideo, Window, open_window


def frame(episode: int, *, success: bool = False, level: int = 0, first: bool = False) -> Frame:
    image = np.full((32, 32, 3), level, dtype=np.uint8)
    return Frame(env=0, episode=episode, image=image, success=success, first=first)


def test_episodes_that_are_spread_over_all_are_kept(tmp_path: Path) -> None:
    recorder = EvaluationVideo(["a"] * 10, max_episodes=3)
    for episode in (1, 2, 4, 5, 7, 8, 9):
        recorder.add_frame(frame(episode, first=True))
    with pytest.raises(ValueError, match="no frame"):
        recorder.write(tmp_path / "film.mp4", fps=5)
    for episode in (0, 3, 6):
        recorder.add_frame(frame(episode, first=True))
    assert len(recorder) == 3
    assert len(EvaluationVideo([], max_episodes=3)) == 0


def test_an_episode_is_told_what_its_cell_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, bool, bool]] = []

    def remember(image: np.ndarray, instruction: str, *, success: bool, over: bool) -> np.ndarray:
        told.append((instruction, success, over))
        return np.zeros((236, 192, 3), dtype=np.uint8)

    monkeypatch.setattr("vla_gym.video.caption", remember)
    recorder = EvaluationVideo(["a", "b"])
    recorder.add_frame(frame(0, first=True))  # lost, and begun once more
    recorder.add_frame(frame(0, first=True))
    recorder.add_frame(frame(0, success=True))
    recorder.add_frame(frame(1, first=True))
    recorder.write(tmp_path / "film.mp4", fps=1)
    # The sheet's size is measured on the first frame, then two steps and two of standing still.
    assert told == [("a", False, False), ("b", False, True)] * 2 + [("a", True, True), ("b", False, True)] * 3


class Root:
    """A Tk root whose `update` fails once the user has closed the window."""

    def __init__(self) -> None:
        self.updates = 0
        self.closed_by_user = self.destroyed = False

    def update(self) -> None:
        if self.closed_by_user:
            raise Tk.TclError
        self.updates += 1

    def destroy(self) -> None:
        self.destroyed = True


class Tk(SimpleNamespace):
    """What `Window` takes of tkinter."""

    class TclError(Exception):
        pass

    class Label:
        def __init__(self, root: Root) -> None: ...
        def pack(self) -> None: ...
        def configure(self, image: Any) -> None: ...


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Sizes of the pictures that were given to Tk."""
    shown: list[tuple[int, int]] = []
    stand_in = SimpleNamespace(PhotoImage=lambda image, master: shown.append(image.size))
    monkeypatch.setitem(sys.modules, "PIL.ImageTk", stand_in)
    monkeypatch.setattr("PIL.ImageTk", stand_in, raising=False)
    return shown


def test_pictures_are_shown_until_the_user_closes_the_window(pictures: list[tuple[int, int]]) -> None:
    root = Root()
    window = Window(Tk, root, fps=1000.0)  # type: ignore[arg-type]
    window.show(np.zeros((4, 6, 3), np.uint8))
    assert (pictures, root.updates) == ([(6, 4)], 1)
    root.closed_by_user = True
    for _ in range(3):
        window.show(np.zeros((4, 6, 3), np.uint8))
    assert len(pictures) == 2
    window.close()
    assert not root.destroyed


def test_there_is_none_without_a_display_or_without_tkinter(monkeypatch: pytest.MonkeyPatch) -> None:
    tkinter = pytest.importorskip("tkinter")

    def no_display() -> None:
        raise tkinter.TclError("no display name and no $DISPLAY environment variable")

    monkeypatch.setattr(tkinter, "Tk", no_display)
    assert open_window("x", fps=5.0) is None
    monkeypatch.setitem(sys.modules, "tkinter", None)
    assert open_window("x", fps=5.0) is None
