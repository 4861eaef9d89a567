"""Where pictures lie while they are learned."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym.errors import BadValue
from zoo.demonstrations import stored_pictures
from zoo.demonstrations.stored_pictures import LOCAL_RANKS, StoredPictures, picture_arrays

SHAPE, SIZE = (4, 8, 8, 3), 4 * 8 * 8 * 3


@pytest.mark.parametrize(
    ("ranks", "cameras", "in_file"), [(None, 1, False), ("1", 1, False), ("2", 1, True), (None, 2, True)]
)
def test_cameras_and_processes_of_one_machine_share_its_memory(
    ranks: str | None, cameras: int, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_pictures, "main_memory", lambda: 2 * SIZE)
    monkeypatch.delenv(LOCAL_RANKS, raising=False)
    if ranks is not None:
        monkeypatch.setenv(LOCAL_RANKS, ranks)
    found = picture_arrays({str(camera): SHAPE for camera in range(cameras)})
    for number, pictures in enumerate(found.values()):
        assert isinstance(pictures, np.memmap) == in_file
        pictures[:] = number
    assert [int(pictures.sum(dtype=np.int64)) for pictures in found.values()] == [0, SIZE][:cameras]


def test_pictures_that_no_disk_holds_are_one_line() -> None:
    with pytest.raises(BadValue, match=r"pictures of 3458764513\.8 GB .* no room .* TMPDIR, .* fewer episodes"):
        picture_arrays({"image": (2**40, 1024, 1024, 3)})


def test_an_array_of_stored_pictures_is_what_is_read() -> None:
    image_THWC = np.arange(2 * 2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 2, 3)
    np.testing.assert_array_equal(np.asarray(StoredPictures((2, 2, 2, 3), lambda: image_THWC)), image_THWC)
