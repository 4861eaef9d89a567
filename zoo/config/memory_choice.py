"""The settings with which a run fits a GPU: decisions scored at once, recomputing, and what else makes room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vla_policies.registry import FAMILIES, family_class
from zoo.config.batch_plan import BatchPlan
from zoo.config.hyperparams import deep_merge
from zoo.config.memory_plan import Rank, needs, total
from zoo.config.run_config import RunConfig
from zoo.config.settings import yaml_line

ENOUGH = 8
"""Decisions scored at once beyond which a 7B's passes gain little: recomputing costs more than smaller passes do."""
SMALLER: Mapping[str, Mapping[str, Any]] = {
    "LoRA": {"lora": {"rank": 32}},
    "the frozen weights in 8 bits": {"quantization": "int8"},
    "the frozen weights in 4 bits": {"quantization": "nf4"},
    "LoRA over frozen weights in 4 bits": {"lora": {"rank": 32}, "quantization": "nf4"},
}
"""In words -> `backbone_kwargs` that take less memory and are another run, least different first."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings that fit."""

    micro_batch_size: int
    """Decisions scored at once."""
    options: Mapping[str, Any]
    """`backbone_kwargs` over the run's."""
    size: int
    """Bytes of a rank's GPU with them."""

    @property
    def flags(self) -> str:
        """For the command line."""
        kwargs = yaml_line({"backbone_kwargs": dict(self.options)})
        changed = f' "policy_kwargs:{kwargs}"' if self.options else ""
        return f"-params micro_batch_size:{self.micro_batch_size}{changed}"


def choose(plan: BatchPlan, config: RunConfig, num_workers: int, rank: Rank, size: float) -> Choice | None:
    """Return the fastest settings that fit `size` bytes and compute the same; None where none do.

    Without recomputing while at least `ENOUGH` decisions fit at once, else with it.
    """
    found = []
    for options in _recomputing(config):
        choice = _largest(plan, with_options(config, options), num_workers, rank, size)
        if choice is not None:
            choice = replace(choice, options=options)
            if choice.micro_batch_size >= min(ENOUGH, plan.batch_share):
                return choice
            found.append(choice)
    return max(found, key=lambda choice: choice.micro_batch_size, default=None)


def nearest(plan: BatchPlan, config: RunConfig, num_workers: int, rank: Rank, size: float) -> tuple[str, Choice] | None:
    """Return the run most like this one that fits, in words and with its settings; None where none does."""
    family = config.family
    if family not in FAMILIES or not family_class(family).takes_adapters:
        return None
    given = config.backbone_kwargs
    for words, options in SMALLER.items():
        if ("lora" in options) == ("lora" in given) or ("quantization" in given):
            continue
        if "quantization" in options and not family_class(family).takes_quantization:
            continue
        choice = choose(plan, with_options(config, options), num_workers, rank, size)
        if choice is not None:
            return words, replace(choice, options={**options, **choice.options})
    return None


def with_options(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """Return the run with `backbone_kwargs` over its own."""
    return replace(config, policy_kwargs=deep_merge(config.policy_kwargs, {"backbone_kwargs": options}))


def _recomputing(config: RunConfig) -> Iterator[dict[str, Any]]:
    """Yield the `backbone_kwargs` without and with recomputing, or none where a family cannot."""
    option = family_class(config.family).recompute_option if config.family in FAMILIES else None
    if option is None:
        yield {}
        return
    yield {option: False}
    yield {option: True}


def _largest(plan: BatchPlan, config: RunConfig, num_workers: int, rank: Rank, size: float) -> Choice | None:
    """Return the most decisions at once that fit: a power of two, or all of the rank's share.

    What passes hold grows linearly with them: two counts say which is worth a third.
    """

    def needed(micro: int) -> int:
        return total(needs(replace(plan, micro_batch_size=micro), config, num_workers, rank), "device")

    share = plan.batch_share
    candidates = [share, *(2**power for power in range(share.bit_length() - 1, -1, -1) if 2**power < share)]
    few, more = candidates[-1], next((micro for micro in reversed(candidates) if micro >= 4), candidates[0])
    least, known = needed(few), {}
    if least > size:
        return None
    known[few] = least
    if more > few:
        known[more] = needed(more)
        slope = (known[more] - least) / (more - few)
        candidates = [micro for micro in candidates if least + slope * (micro - few) <= size or micro in known]
    for micro in candidates:
        if micro not in known:
            known[micro] = needed(micro)
        if known[micro] <= size:
            return Choice(micro_batch_size=micro, options={}, size=known[micro])
    return None
