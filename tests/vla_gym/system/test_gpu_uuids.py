"""What is asked of the two libraries, which are made up here."""

from __future__ import annotations

import ctypes
from typing import Any

from vla_gym.system import gpu_uuids


class FakeCuda:
    """`libcuda` with two GPUs; the second does not tell its UUID."""

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return 0

    def cuDeviceGetUuid(self, value: Any, device: Any) -> int:
        value.raw = bytes(range(16))
        return int(device.value == 1)


class FakeEgl:
    """`libEGL` with devices 1000 and 1001; the first does not tell its UUID."""

    def __init__(self, *known: bytes) -> None:
        def query(most: int, devices: int, count: int) -> int:
            ctypes.c_int.from_address(count).value = 2
            (ctypes.c_void_p * most).from_address(devices)[:2] = [1000, 1001]
            return 1

        def binary(device: int, name: int, most: int, value: int, size: int) -> int:
            ctypes.memmove(value, bytes(range(most)), most)
            return int(device == 1001 and name == 0x335C)

        self._own = {
            b"eglQueryDevicesEXT": gpu_uuids.QueryDevices(query),
            b"eglQueryDeviceBinaryEXT": gpu_uuids.QueryBinary(binary),
        }
        addresses = {name: ctypes.cast(one, ctypes.c_void_p).value for name, one in self._own.items() if name in known}

        def address(name: bytes) -> int | None:
            return addresses.get(name)

        self.eglGetProcAddress = address


def test_both_libraries_are_asked_for_uuids() -> None:
    told = bytes(range(16)).hex()
    assert gpu_uuids.cuda_uuids(FakeCuda()) == [told, "-"]
    both = (b"eglQueryDevicesEXT", b"eglQueryDeviceBinaryEXT")
    assert gpu_uuids.egl_uuids(FakeEgl(*both)) == ["-", told]
    assert gpu_uuids.egl_uuids(FakeEgl(both[0])) == ["-", "-"]
    assert gpu_uuids.egl_uuids(FakeEgl()) == []
