"""A window on a stand-in for tkinter, and none where there is no display."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zoo.evaluation.window import Window, open_window


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


def test_closing_takes_it_away_once(pictures: list[tuple[int, int]]) -> None:
    root = Root()
    window = Window(Tk, root, fps=1000.0)  # type: ignore[arg-type]
    window.close()
    assert root.destroyed
    window.show(np.zeros((4, 6, 3), np.uint8))
    assert not pictures


def test_there_is_none_without_a_display_or_without_tkinter(monkeypatch: pytest.MonkeyPatch) -> None:
    tkinter = pytest.importorskip("tkinter")

    def no_display() -> None:
        raise tkinter.TclError("no display name and no $DISPLAY environment variable")

    monkeypatch.setattr(tkinter, "Tk", no_display)
    assert open_window("x", fps=5.0) is None
    monkeypatch.setitem(sys.modules, "tkinter", None)
    assert open_window("x", fps=5.0) is None
