"""`VideoGrid`: episodes side by side as mp4; each tile shows its instruction, and a mark once it is solved.

Imports Pillow and ffmpeg, so nothing that `import vla_gym` loads imports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import imageio_ffmpeg
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper
from PIL import Image, ImageDraw, ImageFont

from vla_gym.errors import BadValue
from vla_gym.system.paths import check_destination, write_atomic
from vla_gym.vector.vector_env import Observation, VLAVectorEnv

_CAPTION_HEIGHT = 44
_SMALLEST_TILE = 192
_LARGEST_PLAIN_TILE = 256
"""Side up to which captions are of the size above; they grow with larger tiles."""
_HOLD_SECONDS = 2.0
"""How long a video shows its outcome before a player closes or loops."""
_GREEN, _RED, _GREY = (40, 160, 60), (190, 50, 40), (70, 70, 70)


@dataclass
class Tile:
    """An episode."""

    instruction: str
    frames: list[tuple[np.ndarray, bool]] = field(default_factory=list)
    """Uint8 `[H, W, 3]`, and whether the task was solved by then."""


class VideoGrid:
    """Episodes, each a tile: its instruction and its frames so far."""

    def __init__(self) -> None:
        self.tiles: dict[int, Tile] = {}

    def __len__(self) -> int:
        """Number of tiles."""
        return len(self.tiles)

    @property
    def num_solved(self) -> int:
        """Number of tiles whose episode is solved by its last frame."""
        return sum(tile.frames[-1][1] for tile in self.tiles.values() if tile.frames)

    def begin(self, tile: int, instruction: str) -> None:
        """Start a tile, or start it again without its earlier frames."""
        self.tiles[tile] = Tile(instruction)

    def drop(self, tile: int) -> None:
        """Remove a tile."""
        self.tiles.pop(tile, None)

    def add(self, tile: int, image: np.ndarray, *, solved: bool) -> None:
        """Append a frame, uint8 `[H, W, 3]`, to a tile; a task that is `solved` in one frame stays so."""
        frames = self.tiles[tile].frames
        frames.append((image.copy(), solved or any(before for _, before in frames[-1:])))

    def write(self, path: Path, *, fps: float) -> Path:
        """Write the mp4 and return its path; episodes that ended early stand still on their last frame.

        Raises `BadValue` for a path that is no mp4 or cannot be written.
        """
        if not any(tile.frames for tile in self.tiles.values()):
            raise ValueError("no frame was recorded")
        check_destination(path, suffix=".mp4")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Elsewhere until it is whole: an earlier video outlives a failure, and a kill leaves nothing beside it.
            with TemporaryDirectory() as elsewhere:
                draft = Path(elsewhere) / path.name
                self._encode(draft, fps)
                video = draft.read_bytes() if draft.is_file() else b""
            # The index comes last, and ffmpeg does not report that the disk was full.
            if b"moov" not in video:
                raise OSError("ffmpeg did not finish it")
            write_atomic(path, video)
        except OSError as error:
            # ffmpeg itself may be the file that is missing.
            place = f" ('{error.filename}')" if isinstance(error.filename, str) else ""
            raise BadValue(f"cannot write the video '{path}': {error.strerror or error}{place}") from error
        return path

    def _encode(self, path: Path, fps: float) -> None:
        find_ffmpeg()
        length = max(len(tile.frames) for tile in self.tiles.values())
        hold = max(1, round(_HOLD_SECONDS * fps))
        height, width = self._grid(0).shape[:2]
        writer = imageio_ffmpeg.write_frames(
            str(path), (width, height), fps=fps, codec="libx264", quality=8, macro_block_size=2
        )
        writer.send(None)
        try:
            for step in range(length + hold):
                writer.send(self._grid(step))
        finally:
            writer.close()

    def _grid(self, step: int) -> np.ndarray:
        tiles = []
        for _, tile in sorted(self.tiles.items()):
            if tile.frames:
                last = len(tile.frames) - 1
                image, solved = tile.frames[min(step, last)]
                tiles.append(caption(image, tile.instruction, success=solved, over=step >= last))
        columns = math.ceil(math.sqrt(len(tiles)))
        rows = math.ceil(len(tiles) / columns)
        height, width = tiles[0].shape[:2]
        # H.264 with 4:2:0 colour needs even sides.
        sheet = np.zeros((-(-rows * height // 2) * 2, -(-columns * width // 2) * 2, 3), dtype=np.uint8)
        for place, tile_HWC in enumerate(tiles):
            top, left = place // columns * height, place % columns * width
            sheet[top : top + height, left : left + width] = tile_HWC
        return sheet


def caption(image: np.ndarray, instruction: str, *, success: bool, over: bool) -> np.ndarray:
    """The frame, enlarged to at least 192 px, under a bar with the instruction and the outcome so far.

    The bar is green once solved, red when the episode ended unsolved, grey before.
    """
    side = max(_SMALLEST_TILE, image.shape[0])
    scale = max(1.0, side / _LARGEST_PLAIN_TILE)
    bar = round(scale * _CAPTION_HEIGHT)
    enlarged = Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST)
    tile = Image.new("RGB", (side, side + bar), _GREEN if success else _RED if over else _GREY)
    tile.paste(enlarged, (0, bar))
    draw = ImageDraw.Draw(tile)
    font = ImageFont.load_default(size=round(11 * scale))
    for line, text in enumerate(_wrap(instruction, draw, font, side - round(6 * scale))):
        draw.text((3 * scale, (2 + 13 * line) * scale), text, fill="white", font=font)
    state = "solved" if success else "not solved" if over else "under way"
    draw.text((3 * scale, 28 * scale), state, fill="white", font=font)
    return np.asarray(tile)


def _wrap(
    text: str, draw: ImageDraw.ImageDraw, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int
) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font=font) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) == 2:
            lines[-1] += " ..."
            break
        else:
            lines.append(word)
    return lines


class RecordVideo(VectorWrapper):
    """Records the first `episodes` episodes, one frame per decision, side by side in one mp4.

    Each tile shows its instruction, and turns green once solved or red when it ends unsolved. The file is
    written when that many episodes have ended, else by `close` with the frames so far. An episode lost with its
    worker is left out and another one recorded. Works with every autoreset mode; wrap before `reset`.
    """

    env: VLAVectorEnv

    def __init__(self, envs: VLAVectorEnv, path: str | Path, *, episodes: int = 9, fps: float | None = None) -> None:
        """`fps` defaults to the speed of the simulated world (decisions per simulated second).

        Raises `BadValue` for a `path` that is no mp4 or cannot be written.
        """
        if episodes < 1:
            raise BadValue(f"episodes must be at least 1, got {episodes}")
        check_destination(Path(path), suffix=".mp4")
        super().__init__(envs)
        self.path = Path(path)
        self.written = False
        """Whether the file has been written."""
        self._wanted = episodes
        self._fps = float(envs.metadata["render_fps"]) if fps is None else fps
        self._grid = VideoGrid()
        self._begun = 0
        self._tile: list[int | None] = [None] * envs.num_envs
        """Tile of each environment, None between episodes or when enough are being recorded."""
        self._between = np.zeros(envs.num_envs, dtype=np.bool_)
        """Bool `[N]`: the next step shows a new episode (NEXT_STEP)."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `VLAVectorEnv.reset`; the frames of an unfinished episode are dropped."""
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        mask_N = (options or {}).get("reset_mask")
        chosen = range(self.num_envs) if mask_N is None else np.flatnonzero(mask_N).tolist()
        for env in chosen:
            self._drop(env)
            self._begin(env, obs, idle=bool(infos["idle"][env]))
        self._between[list(chosen)] = False
        return obs, infos

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward_N, terminated_N, truncated_N, infos = self.env.step(actions)
        ended_N = terminated_N | truncated_N
        same_step = self.env.autoreset_mode is AutoresetMode.SAME_STEP
        for env in range(self.num_envs):
            if self._between[env]:
                self._begin(env, obs, idle=bool(infos["idle"][env]))
                continue
            moved = same_step and ended_N[env]
            last_info = infos["final_info"] if moved else infos
            image = infos["final_obs"][env]["image"] if moved else obs["image"][env]
            if last_info["lost"][env]:
                self._drop(env)
            elif (tile := self._tile[env]) is not None:
                self._grid.add(tile, image, solved=bool(last_info["success"][env]))
            if ended_N[env]:
                self._tile[env] = None
            if moved:
                self._begin(env, obs, idle=bool(infos["idle"][env]))
        self._between = ended_N & (self.env.autoreset_mode is AutoresetMode.NEXT_STEP)
        if not self.written and len(self._grid) == self._wanted and all(tile is None for tile in self._tile):
            self._write()
        return obs, reward_N, terminated_N, truncated_N, infos

    def close(self, **kwargs: Any) -> None:
        """Write the file if that has not happened, and close the environment."""
        try:
            if not self.written and len(self._grid):
                self._write()
        finally:
            self.env.close(**kwargs)

    def _begin(self, env: int, obs: Observation, *, idle: bool) -> None:
        if idle or len(self._grid) == self._wanted or self.written:
            return
        self._tile[env] = self._begun
        self._grid.begin(self._begun, obs["instruction"][env])
        self._grid.add(self._begun, obs["image"][env], solved=False)
        self._begun += 1

    def _drop(self, env: int) -> None:
        tile, self._tile[env] = self._tile[env], None
        if tile is not None:
            self._grid.drop(tile)

    def _write(self) -> None:
        self._grid.write(self.path, fps=self._fps)
        self.written = True


def find_ffmpeg() -> str:
    """Return its file; raises `OSError` where none runs."""
    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise OSError("no ffmpeg runs here; install ffmpeg, or name its file in IMAGEIO_FFMPEG_EXE") from error
