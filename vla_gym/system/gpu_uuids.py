"""UUIDs of GPUs as CUDA and as EGL number them, on two lines: `python gpu_uuids.py`, a child's program.

The first line has the GPUs that CUDA sees (CUDA_VISIBLE_DEVICES applied), the second EGL's devices. A GPU has the same
UUID in both: EGL_EXT_device_persistent_id promises it across APIs, and CUDA's is Vulkan's. "-" is a device that does
not tell. Imports the standard library alone, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

UNTOLD = "-"
UUID_BYTES = 16
EGL_DEVICE_UUID = 0x335C
"""EGL_DEVICE_UUID_EXT of EGL_EXT_device_persistent_id."""
MOST_DEVICES = 128

QueryDevices = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""eglQueryDevicesEXT: `(max_devices, devices*, num_devices*)` -> success."""
QueryBinary = ctypes.CFUNCTYPE(
    ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
)
"""eglQueryDeviceBinaryEXT: `(device, name, max_size, value*, size*)` -> success."""


def cuda_uuids(cuda: Any) -> list[str]:
    """UUIDs in hex of the GPUs that `libcuda` sees, in its order; of a MIG instance, that of its GPU."""
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_cuda_uuid(cuda, number) for number in range(count.value)]


def _cuda_uuid(cuda: Any, number: int) -> str:
    device, value = ctypes.c_int(), ctypes.create_string_buffer(UUID_BYTES)
    failed = cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetUuid(value, device)
    return UNTOLD if failed else value.raw.hex()


def egl_uuids(egl: Any) -> list[str]:
    """UUIDs in hex of the devices of `libEGL`, in its order, which MUJOCO_EGL_DEVICE_ID counts."""
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
    query, binary = map(egl.eglGetProcAddress, (b"eglQueryDevicesEXT", b"eglQueryDeviceBinaryEXT"))
    devices, count = (ctypes.c_void_p * MOST_DEVICES)(), ctypes.c_int()
    if not query or not QueryDevices(query)(MOST_DEVICES, ctypes.addressof(devices), ctypes.addressof(count)):
        return []
    return [_egl_uuid(binary, device) for device in devices[: count.value]]


def _egl_uuid(binary: int | None, device: int | None) -> str:
    value, size = ctypes.create_string_buffer(UUID_BYTES), ctypes.c_int()
    where = ctypes.addressof(value), ctypes.addressof(size)
    told = binary and QueryBinary(binary)(device, EGL_DEVICE_UUID, UUID_BYTES, *where)
    return value.raw.hex() if told else UNTOLD


if __name__ == "__main__":
    told = cuda_uuids(ctypes.CDLL("libcuda.so.1")), egl_uuids(ctypes.CDLL("libEGL.so.1"))
    sys.stdout.writelines(f"{' '.join(uuids)}\n" for uuids in told)
