"""Which part of a run each rank owns. `num_envs` and batch sizes count those of all ranks."""

from __future__ import annotations

from typing import Any

from zoo.config.batch_plan import check_division
from zoo.config.run_config import RunConfig
from zoo.distributed.process_group import ProcessGroup


def training_share(config: RunConfig, process_group: ProcessGroup) -> dict[str, Any]:
    """Arguments of `make_vec` for this rank: whole groups, equally many on every rank, one schedule over all.

    Raises `BadValue` when the groups do not divide, naming the nearest numbers that do.
    """
    check_division(config.num_envs, num_ranks=process_group.size, num_stages=1, group_size=config.group_size)
    groups = config.num_envs // config.group_size // process_group.size
    return {
        "num_envs": groups * config.group_size,
        "group_offset": process_group.rank * groups,
        "num_groups": process_group.size * groups,
    }


def own_block(count: int, process_group: ProcessGroup) -> slice:
    """Which of `count` things (frames, start states) this rank takes: a block of them, so that tasks change seldom."""
    return slice(
        process_group.rank * count // process_group.size,
        (process_group.rank + 1) * count // process_group.size,
    )
