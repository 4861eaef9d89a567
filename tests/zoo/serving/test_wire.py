"""Values on the wire: both encodings as their own packages write them, and what is refused."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import msgpack
import numpy as np
import pytest
from PIL import Image

from vla_gym.errors import BadValue, MissingDependency
from vla_gym.system import extras
from zoo.serving import wire
from zoo.serving.wire import pack_openpi, pack_vla_eval, require_wire_packages, unpack

IMAGE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
# Written by openpi-client 0.1.2, msgpack_numpy.Packer().pack: IMAGE, [0.5, -1.0] as float64, a text, np.float32(2.5).
OF_OPENPI = (
    "c-m{(n4eUfT2z);l9`{UpP8GOp4xJRJ3c-yC9$X|u`)jX@DY}j#FE4#2N)Qcm|0la*f}`4xOsT__yq)oghfQf#3dx9q-A8~<P{W^lvPyK)HO7<v~_g#^bHJ+"
    "j7?0<%q=XftZi)V>>V7PoLyYq+&w(KynTHA`~w1mf<r>X!XqN1qGMv?;u8{+l2cOC(lau%vU76t@(T)!ic3n%$}1|Xs%vWN>KhuHnp;}i+B-VCx_f&2`X@}B"
    "G<nL@Y13!SoHcvS+<EgCEL^mB$<k%ZSFBvMdd=E(>o;uNw0X<cZQFP3+_ihp-hKOzu%?t$7Njn&DK$L8TAYzskUE)zgBiv9#U+U)IJ_^w00s~2A@m2haW-id"
    "P~#>tEh{L>&n+lfS(KWXoS{&ZnzFE>`3Nu2w1V{1ywsx1WVm^!9ata+A&fBr0B3-e?E"
)
# Written by vla-eval 0.8.0, pack_message: an OBSERVATION with IMAGE as PNG and [0.5, -1.0] as float64.
OF_VLA_EVAL = (
    "c-m`OQc_uvx;j6pIJKxOu_QA;Z+SstWlnx#O7pVJ+{E<M;>MLgGOwg8Gqt>BWqdqXFh2h9vb6l7+{BW_1$pU9QW8rNkN9;4___0PNpUeSFz|YMxC8-d4iM&G"
    "0+Qajns<PdsHcl#NX4Awl!TO|V{8#BDk^OgSQsYmW)YNmc=HfY0fVQjpUXO@gr=p%8Hoj{lQ}q;H<Tn6XUC_c7AF^F7Jyv1vM4n%IYXf+HDy_GNn%NAam(uX"
    "_`H<FqN2n~pvxf65nup=2lf#9!~UfyAfGO_Nwa_$J&|c~acUv+%9707RG=}r1*h#lK-2;N*Ro>v"
)


def bytes_of(recorded: str) -> bytes:
    return zlib.decompress(base64.b85decode(recorded))


def array(**fields: Any) -> bytes:
    """openpi's encoding of one array with some fields replaced."""
    whole = {"__ndarray__": True, "data": b"\0" * 4, "dtype": "<f4", "shape": [1]} | fields
    return msgpack.packb({"x": {key.encode(): value for key, value in whole.items()}})


@pytest.mark.parametrize("pack", [pack_openpi, pack_vla_eval])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "float64", ">f4"])
def test_arrays_come_back_bit_for_bit(pack: Any, dtype: str) -> None:
    value = np.array([[0, 1, 3], [1, 0, 2]]).astype(dtype)
    read = unpack(pack({"x": value, "n": np.float32(0.25)}))
    assert read["x"].dtype == value.dtype
    assert read["x"].tobytes() == value.tobytes()
    assert read["x"].shape == (2, 3)
    assert read["n"] == 0.25


def test_openpi_gets_its_own_keys() -> None:
    assert msgpack.unpackb(pack_openpi({"x": np.zeros(1, np.float32)}))["x"] == {
        b"__ndarray__": True,
        b"data": b"\0" * 4,
        b"dtype": "<f4",
        b"shape": [1],
    }
    assert "__ndarray__" in msgpack.unpackb(pack_vla_eval({"x": np.zeros(1, np.float32)}))["x"]


def image(data: bytes, shape: list[int], form: str = "png") -> bytes:
    return msgpack.packb({"x": {"__image__": True, "format": form, "data": data, "shape": shape}})


def png(size: tuple[int, int], mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, format="PNG")
    return file.getvalue()


def larger(file: bytes, side: int) -> bytes:
    """The PNG, whose header says that it has so many pixels a side."""
    header = b"IHDR" + struct.pack(">II", side, side) + file[24:29]
    return file[:12] + header + struct.pack(">I", zlib.crc32(header)) + file[33:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,  # lists in lists in lists
        b"\xdd\xff\xff\xff\xff",  # a list of 4 billion
        msgpack.packb([1, 2]) + b"\0",
        msgpack.packb({3: 4}),
        msgpack.packb(msgpack.ExtType(5, b"x")),
        *(array(dtype=dtype) for dtype in ("|O", "(1000,)f4", "<c8", "<M8[s]", 7)),
        *(array(shape=shape) for shape in ([2], [2**40, 2**40], [-1, -1], [1] * 99, "x")),
        array(data="four"),
        image(b"no png", [8, 8, 3]),
        image(png((8, 8))[:45], [8, 8, 3]),
        image(png((64, 64)), [8, 8, 3]),
        image(png((8, 8), "RGBA"), [8, 8, 3]),
        image(png((8, 8)), [8, 8, 3], "gif"),
        image(png((8, 8)), [100_000, 100_000, 3]),
        image(larger(png((8, 8)), 60_000), [60_000, 60_000, 3]),
    ],
    ids=range(25),
)
def test_everything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadValue) as failure:
        unpack(data)
    assert "\n" not in str(failure.value)


def test_a_message_unfolds_to_so_many_values_and_no_more() -> None:
    assert unpack(msgpack.packb([[[]] * 1000] * 10)) == [[[]] * 1000] * 10
    with pytest.raises(BadValue, match="65536"):
        unpack(msgpack.packb([[[]] * 4000] * 10))
    with pytest.raises(BadValue, match="65536"):
        unpack(msgpack.packb([[{}] * 4000] * 10))


def test_the_images_of_a_message_are_bounded_together() -> None:
    def message(images: int) -> bytes:
        one = {"__image__": True, "format": "png", "data": png((1024, 1024)), "shape": [1024, 1024, 3]}
        return msgpack.packb([one] * images)

    assert len(message(9)) < 100_000
    assert len(unpack(message(8))) == 8
    with pytest.raises(BadValue, match="25165824"):
        unpack(message(9))


def test_a_missing_package_is_one_line_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_wire_packages()
    monkeypatch.setitem(__import__("sys").modules, "websockets", None)
    monkeypatch.setattr(extras, "DISTRIBUTION", "not-installed-zoo")
    # A checkout in PYTHONPATH has no distribution whose extra pip could find.
    with pytest.raises(MissingDependency, match=r'pip install -e ".+\[serve\]"'):
        wire.require_wire_packages()


def test_what_openpis_client_writes_is_read() -> None:
    read = unpack(bytes_of(OF_OPENPI))
    assert np.array_equal(read["observation/image"], IMAGE)
    assert read["observation/image"].dtype == np.uint8
    assert read["observation/state"].tolist() == [0.5, -1.0]
    assert read["prompt"] == "reach red"


def test_what_vla_evals_client_writes_is_read_png_images_too() -> None:
    read = unpack(bytes_of(OF_VLA_EVAL))
    assert (read["type"], read["seq"]) == ("observation", 3)
    assert np.array_equal(read["payload"]["images"]["agentview"], IMAGE)
    assert read["payload"]["states"].tolist() == [0.5, -1.0]
