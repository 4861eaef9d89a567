"""How long acting and updates take on a GPU: computed from counted operations and a data sheet, not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.config.batch_plan import BatchPlan

if TYPE_CHECKING:  # brings torch
    from vla_policies.footprint import Footprint, Pass

UTILISATION = 0.5
"""Of the data sheet's rate; large matrix products of bf16 reach 0.45 to 0.55 of it on an H100."""
LAUNCH_SECONDS = 8e-6
"""Of one kernel that Python starts, 7 to 10 microseconds; a network of small layers runs no faster than it is
launched."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU, by its maker's data sheet; dense rates."""

    memory: float
    """GiB that programs can have."""
    half: float
    """Floating point operations a second on 16 bits, with sums in float32."""
    single: float
    """On 32 bits, without TF32."""
    bandwidth: float
    """Bytes of memory a second."""


CARDS: Mapping[str, Card] = {
    "rtx3090": Card(memory=24.0, half=71e12, single=35.6e12, bandwidth=936e9),
    "rtx4090": Card(memory=24.0, half=165e12, single=82.6e12, bandwidth=1008e9),
    "l40s": Card(memory=45.0, half=362e12, single=91.6e12, bandwidth=864e9),
    "a100": Card(memory=80.0, half=312e12, single=19.5e12, bandwidth=2039e9),
    "h100": Card(memory=79.6, half=989e12, single=66.9e12, bandwidth=3350e9),
    "h200": Card(memory=140.4, half=989e12, single=66.9e12, bandwidth=4800e9),
}
"""Name for `zoo.plan --gpu` -> the card; A100 and H100 are those of 80 GB with SXM."""


def seconds(counted: Pass, card: Card, weight_bytes: int) -> float:
    """Return the time of one pass: the longest of computing, reading the weights once, and launching."""
    rates = {2: card.half, 4: card.single}
    computing = sum(flops / (UTILISATION * rates.get(width, card.single)) for width, flops in counted.flops.items())
    return max(computing, weight_bytes / card.bandwidth, counted.operations * LAUNCH_SECONDS)


def time_lines(counted: Footprint, plan: BatchPlan, card: Card, name: str) -> list[str]:
    """Return how fast one rank decides and learns."""
    weights = counted.weights.frozen + counted.weights.trained
    act = seconds(counted.act(plan.envs_per_stage), card, weights)
    micro = plan.scored_at_once
    passes = -(-plan.decisions * plan.n_epochs // (plan.num_learners * micro))
    update = passes * seconds(counted.update(micro), card, weights)
    return [
        f"time         computed for {name} at {UTILISATION:.0%} of its data sheet's rates, not measured; no simulators",
        f"             acting: {plan.envs_per_stage / act:,.0f} decisions/s of each rank, {1000 * act:,.0f} ms for "
        f"{plan.envs_per_stage}",
        f"             update: {update:,.1f} s, {passes} passes of {micro} decisions",
    ]
