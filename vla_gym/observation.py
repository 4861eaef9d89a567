"""The one observation layout: which keys, which shapes, which Gymnasium spaces.

image        uint8   [H, W, 3]   main camera
wrist_image  uint8   [H, W, 3]   only when asked for
state        float32 [S]         only when the benchmark has one
privileged   float64 [P]         only when asked for: what scripted experts read, never for policies
instruction  text                always, never empty
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from vla_gym import text

SMALLEST_IMAGE, LARGEST_IMAGE = 8, 2048
"""Sides of an image that simulators are asked for, pixels."""


@dataclass(frozen=True, kw_only=True)
class ObservationLayout:
    """Which observation a set of slots gives; parent and workers build their buffers from the same one."""

    cameras: tuple[str, ...]
    """Keys of the images, main camera first."""
    image_size: int
    """Side of every image, pixels."""
    state_dim: int
    """S; 0 leaves the key `state` out."""
    privileged_dim: int = 0
    """P; 0 leaves the key `privileged` out."""

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each array of one slot's observation (everything but the instruction)."""
        image = ((self.image_size, self.image_size, 3), np.dtype(np.uint8))
        fields: dict[str, tuple[tuple[int, ...], np.dtype]] = dict.fromkeys(self.cameras, image)
        if self.state_dim:
            fields["state"] = ((self.state_dim,), np.dtype(np.float32))
        if self.privileged_dim:
            fields["privileged"] = ((self.privileged_dim,), np.dtype(np.float64))
        return fields

    def space(self) -> spaces.Dict:
        """Space of one slot's observation, the instruction as text."""
        fields = self._array_spaces()
        fields["instruction"] = spaces.Text(text.MAX_BYTES, min_length=1, charset=text.CHARSET)
        return spaces.Dict(fields)

    def bytes_space(self) -> spaces.Dict:
        """The same with the instruction as uint8 `[MAX_BYTES]`, for libraries that know arrays only."""
        fields = self._array_spaces()
        fields["instruction"] = spaces.Box(0, 255, (text.MAX_BYTES,), np.uint8)
        return spaces.Dict(fields)

    def _array_spaces(self) -> dict[str, spaces.Space]:
        fields: dict[str, spaces.Space] = {}
        for key, (shape, dtype) in self.arrays().items():
            low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
            fields[key] = spaces.Box(low, high, shape, dtype.type)
        return fields
