"""Statistics of states and actions as flow policies keep them, and the affine maps that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.transfer import constant

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


def statistics_of_numbers(numbers: Mapping[str, Any]) -> Statistics:
    """Those of the known statistics that `numbers`, lists by name, has."""
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


def check_dims(statistics: Statistics | None, kind: Normalization, needed: int, part: str) -> None:
    """Raise `BadValue` where the statistics of `part` are shorter than the vector that is normalised by them."""
    for name in USED[kind] if statistics is not None else ():
        got = len(getattr(statistics, name))
        if got < needed:
            raise BadValue(f"the checkpoint's {part} statistics '{name}' have {got} dims, {needed} are needed")


def _offset_and_width(statistics: Statistics, kind: Normalization, epsilon: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Offset and divisor of the first `x.shape[-1]` dims."""

    def row(numbers: tuple[float, ...]) -> Tensor:
        return constant(tuple(numbers[: x.shape[-1]]), x.dtype, x.device)

    if kind == "mean_std":
        return row(statistics.mean), row(statistics.std) + epsilon
    offset_A = row(statistics.q01)
    width_A = row(statistics.q99) - offset_A + epsilon
    # A dimension that never moved: lerobot divides by 1e-8 there.
    return offset_A, width_A.masked_fill(width_A == 0, 1e-8)
