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
from zoo.serving.wire import as_mapping, pack_openpi, pack_vla_eval, require_wire_packages, unpack

PICTURE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
# Written by openpi-client 0.1.2, msgpack_numpy.Packer().pack: PICTURE, [0.5, -1.0] as float64, a text, np.float32(2.5).
OF_OPENPI = (
    "c-m{(n4eUfT2z);l9`{UpP8GOp4xJRJ3c-yC9$X|u`)jX@DY}j#FE4#2N)Qcm|0la*f}`4xOsT__yq)oghfQf#3dx9q-A8~<P{W^lvPyK)HO7<v~_g#^bHJ+"
    "j7?0<%q=XftZi)V>>V7PoLyYq+&w(KynTHA`~w1mf<r>X!XqN1qGMv?;u8{+l2cOC(lau%vU76t@(T)!ic3n%$}1|Xs%vWN>KhuHnp;}i+B-VCx_f&2`X@}B"
    "G<nL@Y13!SoHcvS+<EgCEL^mB$<k%ZSFBvMdd=E(>o;uNw0X<cZQFP3+_ihp-hKOzu%?t$7Njn&DK$L8TAYzskUE)zgBiv9#U+U)IJ_^w00s~2A@m2haW-id"
    "P~#>tEh{L>&n+lfS(KWXoS{&ZnzFE>`3Nu2w1V{1ywsx1WVm^!9ata+A&fBr0B3-e?E"
)
# Written by vla-eval 0.8.0, pack_message: an OBSERVATION with PICTURE as PNG and [0.5, -1.0] as float64.
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


def test_what_openpis_client_writes_is_read() -> None:
    read = unpack(bytes_of(OF_OPENPI))
    assert np.array_equal(read["observation/image"], PICTURE)
    assert read["observation/image"].dtype == np.uint8
    assert read["observation/state"].tolist() == [0.5, -1.0]
    assert read["prompt"] == "reach red"
    assert read["x"] == np.float32(2.5)


def test_what_vla_evals_client_writes_is_read_png_pictures_too() -> None:
    read = unpack(bytes_of(OF_VLA_EVAL))
    assert (read["type"], read["seq"]) == ("observation", 3)
    assert np.array_equal(read["payload"]["images"]["agentview"], PICTURE)
    assert read["payload"]["states"].tolist() == [0.5, -1.0]


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


def picture(data: bytes, shape: list[int], form: str = "png") -> bytes:
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
    ("data", "said"),
    [
        (b"", "no msgpack message"),
        (b"\xc1", "no msgpack message"),
        (b"\x91" * 100_000, "no msgpack message"),  # lists in lists in lists
        (b"\xdd\xff\xff\xff\xff", "no msgpack message"),  # a list of 4 billion
        (msgpack.packb([1, 2]) + b"\0", "no msgpack message"),
        (msgpack.packb({3: 4}), "no msgpack message"),
        (msgpack.packb(msgpack.ExtType(5, b"x")), "refused|no msgpack message"),
        (array(dtype="|O"), "'|O' is refused"),
        (array(dtype="(1000,)f4"), "is refused"),
        (array(dtype="<c8"), "is refused"),
        (array(dtype="<M8[s]"), "is refused"),
        (array(dtype=7), "is refused"),
        (array(shape=[2]), "has 8 bytes, got 4 bytes"),
        (array(shape=[2**40, 2**40]), "got 4 bytes"),
        (array(shape=[-1]), "a shape is a list"),
        (array(shape=[True]), "a shape is a list"),
        (array(shape=[1] * 9), "a shape is a list"),
        (array(data="four"), "got str"),
        (picture(b"no png", [8, 8, 3]), "no readable png"),
        (picture(png((8, 8))[:45], [8, 8, 3]), "no readable png"),
        (picture(png((64, 64)), [8, 8, 3]), "holds RGB"),
        (picture(png((8, 8), "RGBA"), [8, 8, 3]), "holds RGBA"),
        (picture(png((8, 8)), [8, 8, 3], "gif"), "raw, png or jpeg"),
        (picture(png((8, 8)), [100_000, 100_000, 3]), "sides up to"),
        (picture(larger(png((8, 8)), 60_000), [64, 64, 3]), "no readable png"),
        (msgpack.packb({"x": {b"__npgeneric__": True, b"data": "1", b"dtype": "<f4"}}), "a number must be"),
    ],
    ids=range(26),
)
def test_everything_else_is_refused_by_name(data: bytes, said: str) -> None:
    with pytest.raises(BadValue) as failure:
        unpack(data)
    assert any(part in str(failure.value) for part in said.split("|") if part), failure.value
    assert "\n" not in str(failure.value)


def test_a_message_unfolds_to_so_many_values_and_no_more() -> None:
    assert unpack(msgpack.packb([[[]] * 1000] * 10)) == [[[]] * 1000] * 10
    with pytest.raises(BadValue, match="65536 lists, mappings and entries"):
        unpack(msgpack.packb([[[]] * 4000] * 10))
    with pytest.raises(BadValue, match="65536 lists, mappings and entries"):
        unpack(msgpack.packb([[{}] * 4000] * 10))


def test_the_pictures_of_a_message_are_bounded_together() -> None:
    def message(pictures: int) -> bytes:
        one = {"__image__": True, "format": "png", "data": png((1024, 1024)), "shape": [1024, 1024, 3]}
        return msgpack.packb([one] * pictures)

    assert len(message(9)) < 100_000
    assert len(unpack(message(8))) == 8
    with pytest.raises(BadValue, match="25165824 bytes once they are decoded"):
        unpack(message(9))


def test_objects_are_not_written_either() -> None:
    with pytest.raises(TypeError, match="no place on the wire"):
        pack_openpi({"x": np.array([object()])})
    with pytest.raises(TypeError, match="no place on the wire"):
        pack_openpi({"x": object()})


def test_a_mapping_has_text_keys() -> None:
    assert as_mapping({"a": 1}, "it") == {"a": 1}
    with pytest.raises(BadValue, match="it must be a mapping"):
        as_mapping([1], "it")
    with pytest.raises(BadValue, match="it must be a mapping"):
        as_mapping({b"a": 1}, "it")


def test_a_missing_package_is_one_line_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_wire_packages()
    monkeypatch.setitem(__import__("sys").modules, "websockets", None)
    monkeypatch.setattr(extras, "DISTRIBUTION", "not-installed-zoo")
    # A checkout in PYTHONPATH has no distribution whose extra pip could find.
    with pytest.raises(MissingDependency, match=r'pip install -e ".+\[serve\]"'):
        wire.require_wire_packages()
