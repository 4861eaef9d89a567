"""Statistics of a checkpoint's training data: choice of the data set, and normalisation.

OpenVLA keeps data set -> "action" and "proprio" -> mean, std, min, max, q01, q99 and mask, in `norm_stats` and
`dataset_statistics.json`, and computes in float64 (`Normaliser`); flow policies keep `Statistics`, and compute in the
type of the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from vla_gym.errors import MOST_OF_WORD, BadValue, shortened, unknown_name
from vla_policies.checkpoint_io.folder import read_config
from vla_policies.devices import constant

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
    """Return the map for `part` ("action" or "proprio") of data set `key`; raise `BadValue` for faulty statistics."""
    names = ("q01", "q99") if bounds == "q01_q99" else ("min", "max")
    try:
        entry = statistics[key][part]
        low_A, high_A = (np.asarray(entry[name], dtype=np.float64) for name in names)
        mask_A = np.asarray(entry.get("mask", [True] * low_A.size), dtype=bool)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise BadValue(f"statistics '{key}' of {where} lack lists of numbers '{part}' {' and '.join(names)}") from error
    # NumPy reads null as NaN.
    if low_A.ndim != 1 or not low_A.shape == high_A.shape == mask_A.shape or not np.isfinite([low_A, high_A]).all():
        raise BadValue(
            f"statistics '{key}' of {where}: '{part}' {', '.join(names)} and mask must be finite numbers of one "
            "length; compute the statistics anew"
        )
    return Normaliser(low_A, high_A, mask_A, epsilon)


Normalization = Literal["mean_std", "quantiles"]
"""Mean to 0 and standard deviation to 1, or the 1 % and 99 % quantiles to -1 and 1."""
USED: dict[str, tuple[str, str]] = {"mean_std": ("mean", "std"), "quantiles": ("q01", "q99")}
"""Normalisation -> the fields of `Statistics` that it reads."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Mean, standard deviation, 1 % and 99 % quantile of each dim of a vector. Only those in use need be given."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    q01: tuple[float, ...] = ()
    q99: tuple[float, ...] = ()


def check_dims(
    statistics: Statistics | None, kind: Normalization, part: str, needed: int, *, read: bool = True
) -> None:
    """Raise `BadValue` where statistics are of more or fewer numbers than an environment has.

    Numbers that never moved, at the end, are padding (openpi pads to 32). `read`: whether the network reads them, so
    that more of them matter.
    """
    if statistics is None:
        return
    first, second = (getattr(statistics, name) for name in USED[kind])
    got = min(len(first), len(second))
    still = second if kind == "mean_std" else [high - low for low, high in zip(first, second, strict=False)]
    moved = max((place + 1 for place in range(got) if still[place]), default=0)
    if needed > got or (read and needed < moved):
        raise BadValue(
            f"the checkpoint's {part} statistics have {moved if needed < moved else got} dims, {needed} are needed: it "
            "was trained on another robot. Fine-tune it on demonstrations of this one, whose numbers are then taken as "
            "they are: vla-zoo sft --dataset FOLDER --policy CHECKPOINT "
            "-params 'policy_kwargs:{backbone_kwargs: {use_statistics: false}}'"
        )


def statistics_of_numbers(numbers: Mapping[str, Any]) -> Statistics:
    """Return the known statistics among `numbers`, lists by name."""
    names = [item.name for item in fields(Statistics)]
    return Statistics(**{name: tuple(map(float, numbers[name])) for name in names if numbers.get(name) is not None})


def normalise(x: Tensor, statistics: Statistics | None, kind: Normalization, epsilon: float) -> Tensor:
    """Units of the data `[..., A]` to the network's; `epsilon` is added to the divisor, None changes nothing."""
    if statistics is None:
        return x
    offset_A, width_A = _offset_and_width(statistics, kind, epsilon, x)
    scaled = (x - offset_A) / width_A
    return scaled if kind == "mean_std" else 2.0 * scaled - 1.0


def unnormalise(x: Tensor, statistics: Statistics | None, kind: Normalization, epsilon: float) -> Tensor:
    """The network's units `[..., A]` to those of the data: inverse of `normalise`."""
    if statistics is None:
        return x
    offset_A, width_A = _offset_and_width(statistics, kind, epsilon, x)
    scaled = x if kind == "mean_std" else 0.5 * (x + 1.0)
    return scaled * width_A + offset_A


def _offset_and_width(statistics: Statistics, kind: Normalization, epsilon: float, x: Tensor) -> tuple[Tensor, Tensor]:
    def row(numbers: tuple[float, ...]) -> Tensor:
        return constant(tuple(numbers[: x.shape[-1]]), x.dtype, x.device)

    if kind == "mean_std":
        return row(statistics.mean), row(statistics.std) + epsilon
    offset_A = row(statistics.q01)
    width_A = row(statistics.q99) - offset_A + epsilon
    # A dimension that never moved: lerobot divides by 1e-8 there.
    return offset_A, width_A.masked_fill(width_A == 0, 1e-8)
