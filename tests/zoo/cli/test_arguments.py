from __future__ import annotations

from importlib import import_module

import pytest

from vla_gym.errors import BadValue
from zoo.cli.arguments import as_pairs, count, key_values

SEEDED = ("collect", "enjoy", "evaluate", "optimize", "record_video", "sft", "train")


@pytest.mark.parametrize("command", SEEDED)
@pytest.mark.parametrize("seed", ["4294967296", "1e10", "-1", "1.5"])
def test_a_seed_that_no_generator_takes_is_refused(command: str, seed: str) -> None:
    with pytest.raises(BadValue, match="argument --seed: must be"):
        import_module(f"zoo.{command}").parser().parse(["--seed", seed])


def test_pairs_are_read_back_as_they_were() -> None:
    values = {
        "learning_rate": {"schedule": "linear", "start": 1e-5, "end": 0.0},
        "clip_range_vf": None,
        "score_bounds": [0.1, 0.9],
        "n_epochs": 3,
        "normalize_advantage": True,
        "kl_reference": "null",
        "policy_kwargs": {f"option_{number}": "a long word " * 8 for number in range(3)},
    }
    pairs = as_pairs(values)
    assert key_values(pairs) == values
    assert pairs[:2] == ["learning_rate:{schedule: linear, start: 1.0e-05, end: 0.0}", "clip_range_vf:null"]
    assert not any("\n" in pair for pair in pairs)


def test_values_are_yaml_and_nothing_is_evaluated() -> None:
    pairs = ["a:3e-4", "b:{schedule: linear, start: 1.0}", "c:true", "d:__import__('os').getcwd()", "e:x:y"]
    assert key_values(pairs) == {
        "a": "3e-4",
        "b": {"schedule": "linear", "start": 1.0},
        "c": True,
        "d": "__import__('os').getcwd()",
        "e": "x:y",
    }


def test_counts_may_be_written_as_floats() -> None:
    assert (count("1e6"), count("10_000")) == (1_000_000, 10_000)


def test_a_flag_given_twice_has_the_values_of_both() -> None:
    parser = import_module("zoo.sft").parser()
    argv = ["--dataset", "a", "b", "-params", "chunk:8", "--dataset", "c", "-params", "image_size:64"]
    args = parser.parse(argv)
    assert (args.dataset, args.params) == (["a", "b", "c"], ["chunk:8", "image_size:64"])
    assert parser.parse([]).params == []
    both = import_module("zoo.compare").parser().parse(["--before", "a", "--before", "b"])
    assert both.before == ["a", "b"]


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(BadValue, match=r"-params chunk is given twice, the second time as '4'; leave one out"):
        key_values(["chunk:8", "image_size:64", "chunk :4"])
    with pytest.raises(BadValue, match="--eval-env-kwargs protocol is given twice"):
        key_values(["protocol:a", "protocol:a"], flag="--eval-env-kwargs")
