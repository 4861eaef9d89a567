"""The head that tells where things are, in fine-tuning: fresh policies get one, fitted to the demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.specs import Benchmark
from vla_policies import VLAPolicy
from zoo.config.hyperparams import deep_merge
from zoo.config.run_config import RunConfig
from zoo.demonstrations.recorder import PRIVILEGED, Demonstration
from zoo.imitation.frames import Frames

FAMILY = "nano"
"""The family whose fresh weights can have the head."""


def only_places(
    groups: Mapping[Path, Sequence[Demonstration]], benchmark: Benchmark
) -> dict[Path, list[Demonstration]]:
    """Return the episodes with those numbers of their privileged vectors alone that are coordinates of things.

    The rest can be told without the picture, as the hand's own place, or not from it, as a cube's quaternion, whose
    signs mean the same; learned together they keep the eye from finding small things. All numbers stay where the
    benchmark does not say which are coordinates. Raises `BadValue` for vectors of another length than the benchmark's.
    """
    if not benchmark.places:
        return {folder: list(group) for folder, group in groups.items()}
    chosen = list(benchmark.places)
    for folder, group in groups.items():
        if (got := group[0].extra[PRIVILEGED].shape[1]) != benchmark.privileged_dim:
            raise BadValue(
                f"'{folder}': the expert saw {got} numbers, that of {benchmark.id} sees {benchmark.privileged_dim}: "
                "learn demonstrations of this benchmark, or leave --privileged-coef out"
            )
    return {
        folder: [replace(one, extra={**one.extra, PRIVILEGED: one.extra[PRIVILEGED][:, chosen]}) for one in group]
        for folder, group in groups.items()
    }


def config_with_head(config: RunConfig, groups: Mapping[Path, Sequence[Demonstration]]) -> RunConfig:
    """Return the configuration with a head of the datasets' size, where fresh weights are learned.

    Raises `BadValue` for datasets whose privileged vectors differ in length: they are of other robots or scenes.
    """
    sizes = {folder: group[0].extra[PRIVILEGED].shape[1] for folder, group in groups.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{folder}' {size}" for folder, size in sizes.items())
        raise BadValue(f"--privileged-coef learns vectors of one length; got {listed}: learn the datasets separately")
    if config.policy != FAMILY:
        return config
    head = {"backbone_kwargs": {"privileged_dim": next(iter(sizes.values()))}}
    return replace(config, policy_kwargs=deep_merge(config.policy_kwargs, head))


def prepare_head(policy: VLAPolicy, frames: Frames) -> None:
    """Give a fresh head the frames' mean and standard deviation; one that has learned keeps its own.

    Raises `BadValue` for a policy without such a head, or with one of another length.
    """
    head, privileged_FP = getattr(policy.backbone, "privileged", None), frames.privileged_BP
    assert privileged_FP is not None
    dims = privileged_FP.shape[1]
    if head is None:
        raise BadValue(
            f"--privileged-coef is for policies that were begun with it, from fresh weights of family '{FAMILY}'; this "
            "one has no head that tells where things are. Leave the flag out"
        )
    if len(head.mean_P) != dims:
        raise BadValue(
            f"the policy tells {len(head.mean_P)} numbers of where things are, the demonstrations have {dims}: "
            "leave --privileged-coef out"
        )
    if policy.backbone.source is None:
        head.fit(privileged_FP)
