"""The stages in order: the name of each, its function and its time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu import card, policies, simulators, training
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.settings import Figures, Settings
from vla_gym.errors import BadValue, unknown_name


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One measurement."""

    run: Callable[[Settings], Figures]
    limit: float
    """Seconds after which it is given up."""
    optional: bool = False
    """Whether it may fail: what a network's present code need not allow."""


def peaks(settings: Settings) -> Figures:
    """The card's bounds, as measured here."""
    full = settings.size == "full"
    side, copied = (8192, 2**30) if full else (128, 2**20)
    found = card.measured_peak(settings.device, side=side, copied=copied, seconds=settings.seconds)
    return {"FLOP/s": found.flops, "bytes/s": found.bandwidth, "source": found.source}


TRAINED = [family for family in ("openvla-oft", "pi0", "smolvla", "nano") if family in MODELS]
STAGES: dict[str, Stage] = {
    "peaks": Stage(run=peaks, limit=60),
    **{f"train:{family}": Stage(run=partial(training.training, family), limit=180) for family in TRAINED},
    **{f"act:{family}": Stage(run=partial(policies.acting, family), limit=120) for family in MODELS},
    **{f"update:{family}": Stage(run=partial(policies.update, family), limit=120) for family in MODELS},
    **{
        f"{scheme}:{family}": Stage(run=partial(policies.update, family, scheme=scheme), limit=120)
        for family, model in MODELS.items()
        for scheme in model.schemes
    },
    **{f"steps:{name}": Stage(run=partial(simulators.steps, name), limit=120) for name in simulators.IDS},
    "steps:maniskill-gpu": Stage(run=simulators.gpu_physics, limit=120),
    **{f"ratio:{family}": Stage(run=partial(policies.ratio_gap, family), limit=60) for family in MODELS},
    **{f"graph:{family}": Stage(run=partial(policies.captured, family), limit=60, optional=True) for family in MODELS},
    **{
        f"compile:{family}": Stage(run=partial(policies.compiled, family), limit=150, optional=True)
        for family in MODELS
    },
}
"""The most asked-for figures first, should time run out."""
SMALL_CARD = ("update:openvla-oft", "nf4:openvla-oft", "update:pi0", "update:smolvla", "train:openvla-oft")
"""Stages of `--memory` where none are named."""


def limited(stage: Stage, settings: Settings) -> Figures:
    """Run a stage in the memory that it may take."""
    if settings.memory is not None and settings.device.type == "cuda":
        whole = torch.cuda.get_device_properties(settings.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, settings.memory * 2**30 / whole), settings.device)
    return stage.run(settings)


def chosen(names: Sequence[str]) -> dict[str, Stage]:
    """Return the stages of these names, or of these kinds ("act" is every "act:..."), in order; all for none.

    Raises `UnknownName` for another one.
    """
    if not names:
        return STAGES
    kinds = {name.partition(":")[0] for name in STAGES}
    for name in names:
        if name not in STAGES and name not in kinds:
            raise unknown_name("stage", name, (*kinds, *STAGES))
    return {name: stage for name, stage in STAGES.items() if {name, name.partition(":")[0]} & set(names)}


def check_budget(minutes: float) -> float:
    """Return seconds; raise `BadValue` unless there are any."""
    if not minutes > 0:
        raise BadValue(f"--minutes must be > 0, got {minutes}")
    return 60.0 * minutes
