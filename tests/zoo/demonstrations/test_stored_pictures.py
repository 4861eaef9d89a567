"""Where pictures lie while they are learned."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym.errors import BadValue
from zoo.demonstrations import stored_pictures
from zoo.demonstrations.stored_pictures import LOCAL_RANKS, StoredPictures, picture_array


@pytest.mark.parametrize(("ranks", "in_file"), [(None, False), ("1", False), ("2", True)])
def test_processes_of_one_machine_share_its_memory(
    ranks: str | None, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_pictures, "main_memory", lambda: 2 * 4 * 8 * 8 * 3)
    monkeypatch.delenv(LOCAL_RANKS, raising=False)
    if ranks is not None:
        monkeypatch.setenv(LOCAL_RANKS, ranks)
    pictures = picture_array((4, 8, 8, 3))
    assert isinstance(pictures, np.memmap) == in_file
    pictures[:] = 7
    assert int(pictures.sum(dtype=np.int64)) == 7 * 4 * 8 * 8 * 3


def test_pictures_that_no_disk_holds_are_one_line() -> None:
    with pytest.raises(BadValue, match=r"pictures of 3458764513\.8 GB .* no room .* TMPDIR, .* --episodes"):
        picture_array((2**40, 1024, 1024, 3))


def test_an_array_of_stored_pictures_is_what_is_read() -> None:
    image_THWC = np.arange(2 * 2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 2, 3)
    np.testing.assert_array_equal(np.asarray(StoredPictures((2, 2, 2, 3), lambda: image_THWC)), image_THWC)
