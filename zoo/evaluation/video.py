"""Evaluated episodes to look at: as an mp4, or in a window where there is a display and Python has tkinter."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from vla_gym.errors import VLAZooError
from vla_gym.video import VideoGrid
from zoo.evaluation.evaluator import Frame


class EvaluationVideo(VideoGrid):
    """Grid of up to `max_episodes` episodes, spread evenly over all; give its `add_frame` to `evaluate`."""

    def __init__(self, instructions: Sequence[str], *, max_episodes: int = 9) -> None:
        """`instructions[i]` belongs to episode i."""
        super().__init__()
        self._sentences = instructions
        count = min(max_episodes, len(instructions))
        self._chosen = frozenset(index * len(instructions) // count for index in range(count))

    def add_frame(self, frame: Frame) -> None:
        """Append the frame to its episode's tile, if it has one."""
        if frame.episode in self._chosen:
            if frame.first:
                self.begin(frame.episode, self._sentences[frame.episode])
            self.add(frame.episode, frame.image, solved=frame.success)

    @contextmanager
    def kept(self, video: Path | None, *, fps: float) -> Iterator[None]:
        """Context manager that writes what was recorded where an error that users meet ends its body, and says so."""
        try:
            yield
        except VLAZooError as error:
            if video is None or not len(self):
                raise
            self.write(video, fps=fps)
            raise type(error)(f"{error}; what was recorded until then is in {video}") from error


class Window:
    """Shows uint8 images `[H, W, 3]`, at most `fps` a second; stays closed once the user has closed it."""

    def __init__(self, tk: ModuleType, root: Any, *, fps: float) -> None:
        from PIL import ImageTk

        self._tk, self._root, self._photo_of = tk, root, ImageTk.PhotoImage
        self._label = tk.Label(root)
        self._label.pack()
        self._pause, self._next = 1.0 / fps, time.monotonic()
        self._open = True

    def show(self, image_HW3: np.ndarray) -> None:
        """Show the image once the previous one has been shown for 1 / `fps` seconds."""
        if not self._open:
            return
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self._pause
        try:
            photo = self._photo_of(Image.fromarray(image_HW3), master=self._root)
            self._label.configure(image=photo)
            self._label.image = photo  # Tk itself keeps no reference
            self._root.update()
        except self._tk.TclError:
            self._open = False

    def close(self) -> None:
        if self._open:
            self._open = False
            self._root.destroy()


def open_window(title: str, *, fps: float) -> Window | None:
    """Open a window; None without a display or tkinter."""
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
