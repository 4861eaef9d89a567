from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo.config.search_space import SPACES, Span, described, draw, drawn_values, read_space
from zoo.config.settings import ALGORITHM_SETTINGS


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
def test_what_cannot_be_searched_is_one_line(
    tmp_path: Path, text: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        read_space(write(tmp_path, text), "ppo")


def test_draws_lie_in_the_space() -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    drawn = draw(trial, {"learning_rate": Span(low=1e-5, high=1e-3, log=True), "n_epochs": (1, 2)})
    assert 1e-5 <= drawn["learning_rate"] <= 1e-3
    assert drawn["n_epochs"] in (1, 2)


def test_the_usual_spaces_hold_settings_of_their_algorithm() -> None:
    for algo, space in SPACES.items():
        assert space.keys() <= ALGORITHM_SETTINGS[algo].keys()


def test_a_choice_may_be_a_mapping_or_nothing() -> None:
    schedule = {"schedule": "linear", "start": 1e-3}
    space = {"learning_rate": (schedule,), "clip_range_vf": (None,)}
    trial = optuna.create_study().ask()
    drawn = draw(trial, space)
    assert drawn == {"learning_rate": schedule, "clip_range_vf": None}
    assert drawn_values(trial.params, space) == drawn


def test_a_space_is_described_as_its_file_writes_it() -> None:
    space = {"learning_rate": Span(low=1e-5, high=1e-3, log=True), "n_epochs": (1, 2)}
    assert described(space) == {
        "learning_rate": "{low: 1.0e-05, high: 0.001, log: true}",
        "n_epochs": "[1, 2]",
    }
