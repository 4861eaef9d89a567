import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.nano.config import SIZES, NanoConfig, config_from_options, fit_image_size


def test_small_is_the_default_and_fields_go_over_the_preset() -> None:
    assert config_from_options({}, 128) == config_from_options({"size": "small"}, 128)
    config = config_from_options({"size": "tiny", "depth": 5}, 128)
    assert (config.width, config.depth) == (SIZES["tiny"]["width"], 5)


@pytest.mark.parametrize(("image_size", "grid"), [(16, 2), (32, 4), (64, 8), (96, 8), (128, 8), (256, 8)])
def test_the_grid_follows_the_image(image_size: int, grid: int) -> None:
    assert config_from_options({}, image_size).grid == grid


@pytest.mark.parametrize(("image_size", "seen"), [(32, 32), (96, 96), (100, 96), (128, 128), (224, 224), (20, 32)])
def test_the_image_is_cut_to_a_multiple(image_size: int, seen: int) -> None:
    assert fit_image_size(image_size, grid=8) == seen


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'widht'.*Did you mean 'width'"):
        config_from_options({"widht": 8}, 32)
    with pytest.raises(UnknownName, match=r"no size of nano 'smal'.*Did you mean 'small'"):
        config_from_options({"size": "smal"}, 32)
    with pytest.raises(UnknownName, match=r"'sharde'.*Did you mean 'shared'"):
        config_from_options({"critic": "sharde"}, 32)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"width": 30, "heads": 4}, "width"),
        ({"width": 6, "heads": 3}, "width"),
        ({"depth": 0}, "depth"),
        ({"bin_features": 7}, "bin_features"),
        ({"initial_std": 0.0}, "initial_std"),
        ({"bin_smoothness": -1.0}, "bin_smoothness"),
    ],
)
def test_impossible_shapes_raise(change: dict, word: str) -> None:
    shape = {"width": 32, "heads": 2, "depth": 1, "readers": 1, "grid": 4}
    with pytest.raises(BadValue, match=word):
        NanoConfig(**{**shape, **change})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"depth": 10**9}, "nano's depth must be an integer in 1 .. 128"),
        ({"points": 10**9}, "nano's points must be"),
        ({"mlp_ratio": 10**8}, "nano's mlp_ratio must be"),
        # 128 blocks x 4096^2 x (4 + 2 x 3) = 2.1e10
        ({"width": 4096, "heads": 32, "depth": 125, "readers": 3}, "these would have 21474836480"),
    ],
)
def test_sizes_that_fill_memory_are_refused_before_it_is_taken(options: dict[str, int], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        config_from_options(options, 64)


def test_every_preset_is_within_the_limits() -> None:
    assert all(config_from_options({"size": size}, 128).width for size in SIZES)
