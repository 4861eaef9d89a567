"""Values on the wire: msgpack with arrays, in the two encodings that openpi and vla-eval use.

openpi's `msgpack_numpy` marks an array by bytes keys (`b"__ndarray__"`), vla-eval's `numpy_codec` by text keys and may
send an image as PNG or JPEG (`"__image__"`). `unpack` reads both: nothing is unpickled, a decoded
message is bounded in memory (`MAX_VALUES`, `MAX_DECODED`), and every fault is a `BadValue`.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, MissingDependency
from vla_gym.observation import LARGEST_IMAGE
from vla_gym.system.extras import install_command

Payload = Mapping[str, Any]
"""Decoded values by their names: a message, or a part of one."""
MAX_ITEMS = 4096
"""Most entries of a list or a mapping in a message."""
MAX_VALUES = 65_536
"""Most lists, mappings and entries of them in a message: an empty list is one byte of a message and 64 in memory."""
MAX_DECODED = 2 * LARGEST_IMAGE * LARGEST_IMAGE * 3
"""Most bytes of a message's PNG and JPEG images together, decoded."""
_DTYPE = re.compile(r"[<>|]?(b1|[iu][1248]|f[248])")
"""Numbers and booleans; objects, structures and text are refused."""
_BROKEN_IMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
"""Errors of Pillow for damaged files."""


def require_wire_packages() -> None:
    """Raise `MissingDependency` where websockets or msgpack is not installed."""
    try:
        import msgpack  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"policies at network addresses need {error.name}, not installed here. Install with: "
            f"{install_command('serve')}"
        ) from error


def pack_openpi(value: Payload) -> bytes:
    """Encode with openpi's arrays."""
    return _packed(value, str.encode)


def pack_vla_eval(value: Payload) -> bytes:
    """Encode with vla-eval's arrays; images are sent raw, without loss."""
    return _packed(value, str)


def unpack(data: bytes) -> Any:
    """Decode a message of either encoding; raises `BadValue` for anything but one whole value within the limits."""
    import msgpack

    limits = _Limits()
    try:
        return msgpack.unpackb(
            data,
            object_hook=limits.mapping,
            list_hook=limits.sequence,
            ext_hook=_refuse_extension,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except BadValue:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise BadValue(f"{len(data)} bytes are no msgpack message: {' '.join(reason.split())[:120]}") from error


def as_mapping(value: object, what: str) -> Payload:
    """Return `value` if it is a mapping with text keys, else raise `BadValue`."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{what} must be a mapping with text keys, got {type(value).__name__}")
    return value


def _packed(value: Payload, key: Callable[[str], str | bytes]) -> bytes:
    import msgpack

    def default(item: object) -> object:
        if isinstance(item, np.generic):
            return item.item()
        if not isinstance(item, np.ndarray) or not _DTYPE.fullmatch(item.dtype.str):
            raise TypeError(f"{getattr(item, 'dtype', type(item).__name__)} cannot be sent")
        fields = {"__ndarray__": True, "data": item.tobytes(), "dtype": item.dtype.str, "shape": list(item.shape)}
        return {key(name): field for name, field in fields.items()}

    packed: bytes = msgpack.packb(value, default=default, use_bin_type=True)
    return packed


class _Limits:
    """Counts what one message holds and refuses what is beyond `MAX_VALUES` and `MAX_DECODED`."""

    def __init__(self) -> None:
        self._values, self._decoded = 0, 0

    def sequence(self, values: Sequence[object]) -> Sequence[object]:
        self._count(values)
        return values

    def mapping(self, fields: dict[object, Any]) -> object:
        """Return the array or image that a mapping stands for, else the mapping."""
        self._count(fields)
        for key in (str.encode, str):
            if key("__ndarray__") in fields:
                return _array(*(fields.get(key(name)) for name in ("data", "dtype", "shape")))
        return self._image(fields) if "__image__" in fields else fields

    def _count(self, values: Sized) -> None:
        self._values += 1 + len(values)
        if self._values > MAX_VALUES:
            raise BadValue(f"a message may hold {MAX_VALUES} lists, mappings and entries of them, not more")

    def _image(self, fields: Mapping[object, Any]) -> np.ndarray:
        """Decode vla-eval's image; its header must state the announced size before a pixel of it is decoded."""
        from PIL import Image

        shape, data, form = fields.get("shape"), fields.get("data"), fields.get("format")
        if form == "raw":
            return _array(data, fields.get("dtype"), shape)
        if form not in ("png", "jpeg") or not isinstance(data, bytes):
            raise BadValue(f"an image is raw, png or jpeg, got {str(form)[:20]!r}")
        try:
            with Image.open(io.BytesIO(data), formats=[form.upper()]) as opened:
                held = [opened.height, opened.width, 3]
                if opened.mode != "RGB" or held != shape or max(held) > LARGEST_IMAGE:
                    raise BadValue(
                        f"an image is RGB [H, W, 3] with sides up to {LARGEST_IMAGE}, got {opened.mode} {held}, "
                        f"announced as {str(shape)[:40]}"
                    )
                self._decoded += math.prod(held)
                if self._decoded > MAX_DECODED:
                    raise BadValue(f"the images of a message may have {MAX_DECODED} bytes decoded, not more")
                return np.asarray(opened)
        except BadValue:
            raise
        except (*_BROKEN_IMAGE, Image.DecompressionBombError) as error:
            raise BadValue(f"an image is no readable {form} file") from error


def _array(data: Any, dtype: object, shape: Any) -> np.ndarray:
    name = dtype.decode("ascii", "replace") if isinstance(dtype, bytes) else str(dtype)
    if not _DTYPE.fullmatch(name):
        raise BadValue(f"dtype {name[:20]!r} is refused: arrays hold booleans, integers or floating point numbers")
    try:
        return np.frombuffer(data, np.dtype(name)).reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadValue(f"an array of {name} {str(shape)[:60]} cannot be read: {str(error)[:120]}") from error


def _refuse_extension(code: int, data: bytes) -> None:
    raise BadValue(f"msgpack extension {code} is refused: messages hold plain values and arrays")
