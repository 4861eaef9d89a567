"""A window that shows pictures, where there is a display and Python has tkinter."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image


class Window:
    """Shows uint8 pictures `[H, W, 3]`, at most `fps` a second; one that the user has closed stays closed."""

    def __init__(self, tk: ModuleType, root: Any, *, fps: float) -> None:
        from PIL import ImageTk

        self._tk, self._root, self._photo_of = tk, root, ImageTk.PhotoImage
        self._label = tk.Label(root)
        self._label.pack()
        self._pause, self._next = 1.0 / fps, time.monotonic()
        self._open = True

    def show(self, picture_HW3: np.ndarray) -> None:
        """Show the picture when the one before has had its time."""
        if not self._open:
            return
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self._pause
        try:
            photo = self._photo_of(Image.fromarray(picture_HW3), master=self._root)
            self._label.configure(image=photo)
            self._label.image = photo  # Tk itself keeps no reference
            self._root.update()
        except self._tk.TclError:
            self._open = False

    def close(self) -> None:
        """Take the window away."""
        if self._open:
            self._open = False
            self._root.destroy()


def open_window(title: str, *, fps: float) -> Window | None:
    """A window, or None where none can be shown."""
    try:
        import tkinter
    except ImportError:
        return None
    try:
        root = tkinter.Tk()
    except tkinter.TclError:
        return None
    root.title(title)
    return Window(tkinter, root, fps=fps)
