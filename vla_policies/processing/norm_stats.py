"""Statistics of a checkpoint's training data: choice of the data set, and normalisation.

The layout is that of OpenVLA's `norm_stats` and `dataset_statistics.json`: data set -> "action" and "proprio"
-> mean, std, min, max, q01, q99 and (for actions) mask. All arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vla_gym.errors import MOST_OF_WORD, BadValue, shortened, unknown_name
from vla_policies.checkpoint_io.folder import read_config

STATISTICS_FILE = "dataset_statistics.json"
"""A fine-tune's own statistics, which override those of its base model."""
NO_NOOPS = "_no_noops"
"""Suffix of data sets without idle steps; their keys may leave it out."""

Bounds = Literal["q01_q99", "min_max"]
"""The statistics that become -1 and 1: quantiles, or the extremes (ALOHA)."""


@dataclass(frozen=True)
class Normaliser:
    """The affine map between a data set's units and [-1, 1]."""

    low_A: np.ndarray
    """Becomes -1, float64."""
    high_A: np.ndarray
    """Becomes 1, float64."""
    mask_A: np.ndarray
    """Bool; where False, numbers pass unchanged."""
    epsilon: float
    """Added to the width: 0 in OpenVLA, 1e-8 in OpenVLA-OFT."""

    def normalise(self, x: np.ndarray) -> np.ndarray:
        """Data units `[..., A]` to [-1, 1], clipped, float64."""
        scaled = 2.0 * (x - self.low_A) / (self.high_A - self.low_A + 1e-8) - 1.0
        return np.clip(np.where(self.mask_A, scaled, x), -1.0, 1.0)

    def unnormalise(self, x: np.ndarray) -> np.ndarray:
        """[-1, 1] `[..., A]` to data units, float64 (float32 numbers are halved as such, as in the original)."""
        width = self.high_A - self.low_A + self.epsilon
        return np.where(self.mask_A, 0.5 * (x + 1) * width + self.low_A, x)


def identity(dims: int) -> Normaliser:
    """The map that leaves numbers in [-1, 1] unchanged."""
    return Normaliser(-np.ones(dims), np.ones(dims), np.zeros(dims, dtype=bool), 0.0)


def read_statistics(config: Mapping[str, Any], folders: Sequence[Path]) -> tuple[dict[str, Any], list[str]]:
    """(all statistics of a model, the data sets that it was trained on last).

    `folders`, nearest first, are those of an adapter and the model's. A nearer `dataset_statistics.json` goes over a
    farther one, and each over `norm_stats` of `config.json`, where a fine-tune keeps its base's data sets, too. As in
    the originals, the nearest that there is names the data sets of the training.
    """
    files = [read_config(folder, STATISTICS_FILE) for folder in folders if (folder / STATISTICS_FILE).is_file()]
    layers = [*files, config.get("norm_stats") or {}]
    merged = {key: entry for layer in reversed(layers) for key, entry in layer.items()}
    return merged, list(next(filter(None, layers), {}))


def choose_key(statistics: Mapping[str, Any], wanted: str | None, where: str, suite: str | None = None) -> str | None:
    """The data set of `unnorm_key`; None when there are no statistics and no key is given.

    A key may leave out `_no_noops`. Without a key there must be exactly one data set, or one with the name of
    the environment's `suite`, or of the suite that this one is a variant of (`libero_goal` of
    `libero_goal_swap`). Raises `UnknownName` listing the right ones, or `BadValue`.
    """
    if wanted is None:
        unchanged = () if suite is None else (suite, suite.rpartition("_")[0])
        for key in (key for name in unchanged for key in (name, name + NO_NOOPS)):
            if key in statistics:
                return key
        if len(statistics) > 1:
            raise BadValue(
                f"{where} has action statistics of {len(statistics)} data sets; "
                f"choose one with unnorm_key: {shortened(', '.join(sorted(statistics)), MOST_OF_WORD)}"
            )
        return next(iter(statistics), None)
    if not statistics:
        raise BadValue(f"{where} has no action statistics; unnorm_key must be None, got '{wanted}'")
    for key in (wanted, wanted + NO_NOOPS):
        if key in statistics:
            return key
    raise unknown_name(f"unnorm_key in {where}", wanted, statistics)


def normaliser(
    statistics: Mapping[str, Any], key: str, part: str, where: str, *, bounds: Bounds, epsilon: float
) -> Normaliser:
    """The map for `part` ("action" or "proprio") of data set `key`; absent or ragged statistics raise."""
    entry = statistics[key].get(part)
    if not isinstance(entry, Mapping):
        raise BadValue(f"statistics '{key}' of {where} have no '{part}'")
    low_name, high_name = ("q01", "q99") if bounds == "q01_q99" else ("min", "max")
    source = f"statistics '{key}' of {where}"
    low_A, high_A = (_numbers(entry, name, part, source) for name in (low_name, high_name))
    mask_A = np.asarray(entry.get("mask", [True] * low_A.size), dtype=bool)
    if low_A.ndim != 1 or low_A.shape != high_A.shape or low_A.shape != mask_A.shape:
        raise BadValue(
            f"{source}: {low_name}, {high_name} and mask of '{part}' are not of one "
            f"length ({low_A.shape}, {high_A.shape}, {mask_A.shape})"
        )
    return Normaliser(low_A, high_A, mask_A, epsilon)


def _numbers(entry: Mapping[str, Any], name: str, part: str, source: str) -> np.ndarray:
    """One list of the statistics, checked to be finite: NumPy reads null as NaN."""
    try:
        found = np.asarray(entry[name], dtype=np.float64)
    except (KeyError, ValueError, TypeError) as error:
        raise BadValue(f"{source} lack numbers '{part}.{name}'") from error
    if not np.isfinite(found).all():
        raise BadValue(
            f"{source}: '{part}.{name}' must be finite numbers, got {entry[name]}; compute the statistics anew"
        )
    return found
