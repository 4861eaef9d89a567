from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue, UnknownName
from vla_policies.processing.statistics import (
    Statistics,
    check_dims,
    choose_key,
    normalise,
    normaliser,
    read_statistics,
    unnormalise,
)

STATISTICS = Statistics(mean=(1.0, 2.0), std=(2.0, 4.0), q01=(-1.0, 5.0), q99=(3.0, 5.0))


def test_mean_and_deviation_by_hand() -> None:
    x = torch.tensor([[3.0, 0.0]])
    # Two above the mean is one deviation of 2, two below it half a deviation of 4.
    assert normalise(x, STATISTICS, "mean_std", 0.0).tolist() == [[1.0, -0.5]]
    assert unnormalise(torch.tensor([[1.0, -0.5]]), STATISTICS, "mean_std", 0.0).tolist() == [[3.0, 0.0]]
    assert normalise(x[:, :1], STATISTICS, "mean_std", 2.0).tolist() == [[0.5]]


def test_quantiles_by_hand() -> None:
    # 2 (3 + 1) / 4 - 1; the second dim never moved.
    assert normalise(torch.tensor([[3.0, 5.0]]), STATISTICS, "quantiles", 0.0).tolist() == [[1.0, -1.0]]
    assert unnormalise(torch.tensor([[0.0]]), STATISTICS, "quantiles", 0.0).tolist() == [[1.0]]


STATS = {
    "libero_10_no_noops": {
        "action": {"q01": [-1.0, 0.0], "q99": [3.0, 1.0], "min": [-2.0, 0.0], "max": [6.0, 1.0], "mask": [True, False]},
        "proprio": {"q01": [0.0], "q99": [2.0]},
    },
    "bridge": {"action": {"q01": [0.0], "q99": [1.0]}},
}


def open_action(bounds: str = "q01_q99", epsilon: float = 0.0):  # type: ignore[no-untyped-def]
    return normaliser(STATS, "libero_10_no_noops", "action", "here", bounds=bounds, epsilon=epsilon)  # type: ignore[arg-type]


def test_unnormalising_by_hand() -> None:
    # 0.5 (0.5 + 1) (3 - -1) + -1 = 2; the gripper passes.
    assert open_action().unnormalise(np.array([[0.5, 0.25]])).tolist() == [[2.0, 0.25]]
    # With the extremes: 0.5 * 1.5 * 8 - 2 = 4.
    assert open_action("min_max").unnormalise(np.array([0.5, 0.25])).tolist() == [4.0, 0.25]
    assert open_action(epsilon=1e-8).unnormalise(np.array([1.0, 0.0]))[0] == pytest.approx(3.0 + 1e-8, abs=1e-12)


def test_normalising_by_hand_clips() -> None:
    part = normaliser(STATS, "libero_10_no_noops", "proprio", "here", bounds="q01_q99", epsilon=0.0)
    assert part.normalise(np.array([0.5])) == pytest.approx(-0.5, abs=1e-8)
    assert part.normalise(np.array([9.0])).tolist() == [1.0]


@pytest.mark.parametrize(
    ("wanted", "suite", "key"),
    [
        ("bridge", None, "bridge"),
        ("libero_10", None, "libero_10_no_noops"),
        (None, "libero_10", "libero_10_no_noops"),
        (None, "libero_10_swap", "libero_10_no_noops"),
        ("bridge", "libero_10", "bridge"),
    ],
)
def test_keys_are_found(wanted: str | None, suite: str | None, key: str) -> None:
    assert choose_key(STATS, wanted, "here", suite) == key


def test_wrong_and_missing_keys_are_named() -> None:
    with pytest.raises(UnknownName, match=r"'bridg'\. Known: bridge, libero_10_no_noops\. Did you mean 'bridge'"):
        choose_key(STATS, "bridg", "here")
    with pytest.raises(BadValue, match="choose one with unnorm_key: bridge, libero_10_no_noops"):
        choose_key(STATS, None, "here", "libero_goal")


@pytest.mark.parametrize(
    "action",
    [
        None,
        {"q01": [0.0]},
        {"q01": [0.0], "q99": ["x"]},
        {"q01": [0.0, None], "q99": [1.0, 1.0]},
        {"q01": [0.0], "q99": [float("inf")]},
        {"q01": [0.0], "q99": [1.0, 2.0]},
        {"q01": [0.0], "q99": [1.0], "mask": [True, True]},
    ],
)
def test_broken_statistics_are_named(action: object) -> None:
    with pytest.raises(BadValue, match=r"statistics 'a' of here.*'action' q01"):
        normaliser({"a": {"action": action}}, "a", "action", "here", bounds="q01_q99", epsilon=0.0)


def test_a_nearer_file_goes_over_a_farther_one_and_names_the_training(tmp_path: Path) -> None:
    adapter, model = tmp_path / "adapter", tmp_path / "model"
    for folder, values in ((adapter, {"mine": {"n": 3}}), (model, {"mine": {"n": 2}, "libero_10": {"n": 2}})):
        folder.mkdir()
        (folder / "dataset_statistics.json").write_text(json.dumps(values))
    config = {"norm_stats": {"mine": {"n": 1}, "libero_10": {"n": 1}, "bridge_orig": {"n": 1}}}
    merged = {"bridge_orig": {"n": 1}, "libero_10": {"n": 2}, "mine": {"n": 3}}
    assert read_statistics(config, [adapter, model]) == (merged, ["mine"])
    assert read_statistics(config, [model])[1] == ["mine", "libero_10"]
    assert read_statistics(config, [tmp_path]) == (config["norm_stats"], ["mine", "libero_10", "bridge_orig"])
    assert read_statistics({}, [tmp_path]) == ({}, [])


SEVEN = Statistics(mean=(0.0,) * 7, std=(1.0,) * 7, q01=(-1.0,) * 7, q99=(1.0,) * 7)
PADDED = Statistics(mean=(0.1,) * 7 + (0.0,) * 25, std=(1.0,) * 7 + (0.0,) * 25)


@pytest.mark.parametrize(
    ("statistics", "kind", "needed", "read", "says"),
    [
        (SEVEN, "mean_std", 7, True, ""),
        (SEVEN, "mean_std", 4, True, "have 7 dims, 4 are needed"),
        (SEVEN, "mean_std", 4, False, ""),
        (SEVEN, "mean_std", 9, False, "have 7 dims, 9 are needed"),
        # openpi's of its base models: seven numbers that move, and padding.
        (PADDED, "mean_std", 8, True, ""),
        (PADDED, "mean_std", 4, True, "have 7 dims, 4 are needed"),
        (None, "mean_std", 4, True, ""),
    ],
)
def test_statistics_of_another_robot_are_refused(
    statistics: Statistics | None, kind: str, needed: int, read: bool, says: str
) -> None:
    if not says:
        check_dims(statistics, kind, "action", needed, read=read)  # type: ignore[arg-type]
        return
    with pytest.raises(BadValue, match=f"action statistics {says}.*zoo.sft.*use_statistics: false"):
        check_dims(statistics, kind, "action", needed, read=read)  # type: ignore[arg-type]
