from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.search_space import SPACES, Span, described, read_space
from zoo.config.settings import annotations_of


def write(folder: Path, text: str) -> Path:
    file = folder / "space.yml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_says_spans_and_choices(tmp_path: Path) -> None:
    file = write(tmp_path, "learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}\nn_epochs: [1, 2]\n")
    assert read_space(file, "ppo") == {
        "learning_rate": Span(low=1e-5, high=1e-3, log=True),
        "n_epochs": (1, 2),
    }


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("learning_rat: [1.0e-3]\n", UnknownName, "learning_rate"),
        ("n_epochs: [1, many]\n", BadValue, "n_epochs"),
        ("gamma: {low: 0.9, high: 1.5}\n", BadValue, "gamma"),
        ("ent_coef: {low: 0.0, high: 0.1, log: true}\n", BadValue, "low > 0 with log"),
        ("n_epochs: 3\n", BadValue, "must be a list"),
        ("chunk: [4, 8]\n", BadValue, "give it with -params"),
        ("[]\n", BadValue, "must map"),
    ],
)
def test_what_cannot_be_searched_is_one_line(tmp_path: Path, text: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        read_space(write(tmp_path, text), "ppo")


def test_the_usual_spaces_hold_settings_of_their_algorithm() -> None:
    for algo, space in SPACES.items():
        assert space.keys() <= annotations_of(ALGORITHMS[algo]).keys()


def test_a_space_is_described_as_its_file_writes_it() -> None:
    space = {"learning_rate": Span(low=1e-5, high=1e-3, log=True), "n_epochs": (1, 2)}
    assert described(space) == {
        "learning_rate": "{low: 1.0e-05, high: 0.001, log: true}",
        "n_epochs": "[1, 2]",
    }
