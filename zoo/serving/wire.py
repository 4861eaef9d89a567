"""Values on the wire: msgpack with arrays, in the two encodings that openpi and vla-eval use.

openpi's `msgpack_numpy` marks an array by bytes keys (`b"__ndarray__"`), vla-eval's `numpy_codec` by text keys and may
send a picture as PNG or JPEG (`"__image__"`). Reading takes both; whatever a peer sends, nothing is unpickled, what a
message unfolds to is bounded (`MAX_VALUES`, `MAX_DECODED`), and every fault is a `BadValue`.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, MissingDependency
from vla_gym.observation import LARGEST_IMAGE
from vla_gym.system.extras import install_command

MAX_ITEMS = 4096
"""Most entries of a list or a mapping in a message."""
MAX_VALUES = 65_536
"""Most lists, mappings and entries of them in a message: an empty list is one byte of a message and 64 in memory."""
MAX_DECODED = 2 * LARGEST_IMAGE * LARGEST_IMAGE * 3
"""Most bytes of a message's PNG and JPEG pictures together, decoded."""
MAX_DIMS = 8
"""Most dimensions of an array in a message."""
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("b1", "i1", "u1", "f2", "f4", "f8")} | {
    dtype.str: dtype
    for order in "<>"
    for size in (2, 4, 8)
    for kind in "iuf"
    for dtype in [np.dtype(f"{order}{kind}{size}")]
}
"""Numbers and booleans; objects, structures and text are refused by not being here."""
_BROKEN_PICTURE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
"""What Pillow raises for files that are damaged or made to do damage; most of its own errors are among them."""


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


def pack_openpi(value: Any) -> bytes:
    """Encode with openpi's arrays."""
    return _packed(value, lambda array: _array_fields(array, str.encode))


def pack_vla_eval(value: Any) -> bytes:
    """Encode with vla-eval's arrays; pictures go raw, which loses nothing and costs no time."""
    return _packed(value, lambda array: _array_fields(array, str))


def unpack(data: bytes) -> Any:
    """Decode a message of either encoding; raises `BadValue` for anything but one whole, modest value."""
    import msgpack

    room = _Room()
    try:
        return msgpack.unpackb(
            data,
            object_hook=room.mapping,
            list_hook=room.sequence,
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


def as_mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Return `value` if it is a mapping with text keys, else raise `BadValue`."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{what} must be a mapping with text keys, got {type(value).__name__}")
    return value


def _packed(value: Any, encode: Callable[[np.ndarray], Any]) -> bytes:
    import msgpack

    def default(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            return encode(item)
        if isinstance(item, np.generic):
            return item.item()
        raise TypeError(f"{type(item).__name__} has no place on the wire")

    packed: bytes = msgpack.packb(value, default=default, use_bin_type=True)
    return packed


def _array_fields(array: np.ndarray, key: Callable[[str], Any]) -> dict[Any, Any]:
    if array.dtype.str not in _DTYPES:
        raise TypeError(f"arrays of {array.dtype} have no place on the wire")
    values = {"__ndarray__": True, "data": array.tobytes(), "dtype": array.dtype.str, "shape": list(array.shape)}
    return {key(name): value for name, value in values.items()}


class _Room:
    """What one message may still unfold to; a message that wants more is refused with `BadValue`."""

    def __init__(self) -> None:
        self._values, self._decoded = MAX_VALUES, MAX_DECODED

    def sequence(self, values: Sequence[Any]) -> Sequence[Any]:
        self._count(values)
        return values

    def mapping(self, fields: dict[Any, Any]) -> Any:
        """Return the array or picture that a mapping stands for, else the mapping."""
        self._count(fields)
        return _decoded(fields, self)

    def decode(self, size: int) -> None:
        """Take the bytes of a picture that is to be decoded."""
        self._decoded -= size
        if self._decoded < 0:
            raise BadValue(f"the pictures of a message may have {MAX_DECODED} bytes once they are decoded, not more")

    def _count(self, values: Sized) -> None:
        self._values -= 1 + len(values)
        if self._values < 0:
            raise BadValue(f"a message may hold {MAX_VALUES} lists, mappings and entries of them, not more")


def _decoded(fields: dict[Any, Any], room: _Room) -> Any:
    if b"__npgeneric__" in fields:
        return _scalar(fields)
    for key in (str.encode, str):
        if key("__ndarray__") in fields:
            data, dtype, shape = (fields.get(key(name)) for name in ("data", "dtype", "shape"))
            return _array(data, dtype, shape)
    return _picture(fields, room) if "__image__" in fields else fields


def _scalar(fields: Mapping[Any, Any]) -> np.generic:
    dtype, value = _dtype(fields.get(b"dtype")), fields.get(b"data")
    if not isinstance(value, (bool, int, float)):
        raise BadValue(f"a number must be written as one, got {type(value).__name__}")
    try:
        scalar: np.generic = dtype.type(value)
    except (OverflowError, ValueError) as error:
        raise BadValue(f"{value} does not fit {dtype}") from error
    return scalar


def _array(data: Any, dtype_text: Any, shape: Any) -> np.ndarray:
    dtype, sides = _dtype(dtype_text), _shape(shape)
    if not isinstance(data, bytes) or len(data) != math.prod(sides) * dtype.itemsize:
        got = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise BadValue(f"an array of {dtype} {list(sides)} has {math.prod(sides) * dtype.itemsize} bytes, got {got}")
    return np.frombuffer(data, dtype).reshape(sides)


def _dtype(text: Any) -> np.dtype:
    name = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    if not isinstance(name, str) or name not in _DTYPES:
        raise BadValue(f"dtype {str(name)[:20]!r} is refused: arrays hold booleans, integers or floating point numbers")
    return _DTYPES[name]


def _shape(shape: Any) -> tuple[int, ...]:
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMS
        or not all(isinstance(side, int) and not isinstance(side, bool) and side >= 0 for side in shape)
    ):
        raise BadValue(f"a shape is a list of at most {MAX_DIMS} whole numbers, got {str(shape)[:60]}")
    return tuple(shape)


def _picture(fields: Mapping[Any, Any], room: _Room) -> np.ndarray:
    """Decode vla-eval's picture; its file's size must be the stated one before a pixel of it is decoded."""
    from PIL import Image

    shape, data, form = _shape(fields.get("shape")), fields.get("data"), fields.get("format")
    if form == "raw":
        return _array(data, fields.get("dtype"), list(shape))
    if form not in ("png", "jpeg") or not isinstance(data, bytes):
        raise BadValue(f"a picture is raw, png or jpeg, got {str(form)[:20]!r}")
    if len(shape) != 3 or shape[2] != 3 or max(shape[:2]) > LARGEST_IMAGE:
        raise BadValue(f"a picture is [H, W, 3] with sides up to {LARGEST_IMAGE}, got {list(shape)}")
    try:
        with Image.open(io.BytesIO(data), formats=[form.upper()]) as opened:
            if opened.size != (shape[1], shape[0]) or opened.mode != "RGB":
                raise BadValue(f"a picture of {list(shape)} holds {opened.mode} {opened.size}")
            room.decode(math.prod(shape))
            return np.asarray(opened)
    except BadValue:
        raise
    except (*_BROKEN_PICTURE, Image.DecompressionBombError) as error:
        raise BadValue(f"a picture is no readable {form} file") from error


def _refuse_extension(code: int, data: bytes) -> Any:
    raise BadValue(f"msgpack extension {code} is refused: messages hold plain values and arrays")
