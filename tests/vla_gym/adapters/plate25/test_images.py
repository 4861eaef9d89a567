from __future__ import annotations

import numpy as np
from PIL import Image

from vla_gym.adapters.plate25.images import bilinear, green_screen, letterbox, stand_in_photo, stand_in_texture

DRAWN, PHOTO = (np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8) for seed in (0, 1))
FOREGROUND = np.zeros((12, 16), dtype=bool)
FOREGROUND[3:7, 4:10] = True
FOREGROUND[5, 6] = False


def test_a_whole_texture_lies_on_everything_and_moves_with_the_box() -> None:
    black = np.zeros_like(DRAWN)
    ramp = np.zeros((24, 32, 3), dtype=np.uint8)
    ramp[:] = np.arange(24, dtype=np.uint8)[:, None, None] * 10
    seen = green_screen(black, FOREGROUND, black, blend="whole", texture=ramp, alpha=0.5)
    # Twice the frame is 24 x 32, the texture's own size; the box's rows 3-6 have their middle at 4: rows 4 .. 15.
    assert seen[:, 0, 0].tolist() == [row * 5 for row in range(4, 16)]
    lower = np.roll(FOREGROUND, 2, axis=0)
    assert green_screen(black, lower, black, blend="whole", texture=ramp, alpha=0.5)[0, 0, 0] == 30
    unmixed = green_screen(DRAWN, FOREGROUND, PHOTO, blend="whole", texture=ramp, alpha=0.0)
    np.testing.assert_array_equal(unmixed, green_screen(DRAWN, FOREGROUND, PHOTO))


def test_bilinear_has_half_pixel_centres() -> None:
    two = np.array([[[0], [100]]], dtype=np.uint8).repeat(3, axis=2)
    # Twice as wide: centres at -0.25, 0.25, 0.75, 1.25 of the old ones -> 0, 25, 75, 100.
    assert bilinear(two, 1, 4)[0, :, 0].tolist() == [0.0, 25.0, 75.0, 100.0]
    image = np.random.default_rng(2).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    np.testing.assert_array_equal(bilinear(image, 5, 6), image)
    window = (slice(3, 9), slice(2, 4))
    np.testing.assert_array_equal(bilinear(image, 11, 13, window), bilinear(image, 11, 13)[window])


def test_a_letterbox_is_what_openpi_makes_of_the_camera() -> None:
    """`resize_with_pad` of openpi_client: 168 of 224 rows, PIL's bilinear, the rest black."""
    image = np.random.default_rng(0).integers(1, 256, (480, 640, 3), dtype=np.uint8)
    shown = letterbox(image, 224)
    assert shown.shape == (224, 224, 3)
    assert not shown[:28].any()
    assert not shown[196:].any()
    inner = np.array(Image.fromarray(image).resize((224, 168), Image.Resampling.BILINEAR))
    assert (shown[28:196] == inner).all()
    assert (letterbox(inner, 224) == shown).all()  # drawn at that size


def test_stand_ins_are_the_same_each_time_and_differ_from_each_other() -> None:
    for make in (stand_in_photo, stand_in_texture):
        assert make(3).shape == (480, 640, 3)
        assert np.array_equal(make(3), make(3))
        assert not np.array_equal(make(3), make(4))
