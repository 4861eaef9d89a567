from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo.config.hyperparams import candidate_keys, load_hyperparams


def write(folder: Path, text: str) -> Path:
    path = folder / "conf.yml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_most_exact_key_comes_first() -> None:
    assert candidate_keys("LIBERO-Spatial/3", "nano") == [
        "LIBERO-Spatial/3/nano",
        "LIBERO-Spatial/nano",
        "LIBERO/nano",
        "default/nano",
    ]
    assert candidate_keys("Toy-Reach", "nano") == ["Toy-Reach/nano", "Toy/nano", "default/nano"]
    assert candidate_keys("ManiSkill-Plate25-EEPose", "nano") == [
        "ManiSkill-Plate25-EEPose/nano",
        "ManiSkill-Plate25/nano",
        "ManiSkill/nano",
        "default/nano",
    ]


def test_the_family_entry_stands_in_for_a_suite(tmp_path: Path) -> None:
    conf = write(tmp_path, "default/nano: {source: d, num_envs: 1}\nLIBERO/nano: {source: f, num_envs: 2}\n")
    found = load_hyperparams("ppo", "LIBERO-Goal", "nano", conf)
    assert (found.entry, found.source, found.values) == ("LIBERO/nano", "f", {"num_envs": 2})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("default/nano: {source: d, learning_rat: 1.0e-3}\n", "Did you mean 'learning_rate'"),
        ("MetaWorld/nano: {source: d}\n", "MetaWorld/nano"),
        ("Toy-Reach: {n_timesteps: 100}\n", "'Toy-Reach/nano'.*Toy-Reach"),  # as rl_zoo3 names its entries
    ],
)
def test_an_unknown_name_tells_the_nearest(text: str, names: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=names):
        load_hyperparams("ppo", "Toy-Reach", "nano", write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default/nano: {source: [d]}\n", "source"),
        ("- a\n- b\n", "must map entries"),
        ("default/nano: {source: [\n", "not valid YAML"),
        ("default/nano: {source: d, env_kwargs: tiny}\n", "mapping"),
        ("default/nano: {source: d, gamma: .nan}\n", "must be a number"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        load_hyperparams("ppo", "Toy-Reach", "nano", write(tmp_path, text))


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path: Path) -> None:
    conf = write(tmp_path, "default/nano: {source: d, learning_rate: 3e-4, n_timesteps: 1e6}\n")
    values = load_hyperparams("ppo", "Toy-Reach", "nano", conf).values
    assert values == {"learning_rate": 3e-4, "n_timesteps": 1_000_000}
    assert isinstance(values["n_timesteps"], int)


def test_a_schedule_is_a_mapping_and_is_never_evaluated(tmp_path: Path) -> None:
    conf = write(tmp_path, "default/nano: {source: d, learning_rate: {schedule: linear, start: 1.0, end: 0.0}}\n")
    assert load_hyperparams("ppo", "Toy-Reach", "nano", conf).values["learning_rate"]["schedule"] == "linear"
    evil = write(tmp_path, "default/nano: {source: d, learning_rate: '__import__(\"os\")'}\n")
    with pytest.raises(BadValue, match="must be a number"):
        load_hyperparams("ppo", "Toy-Reach", "nano", evil)
