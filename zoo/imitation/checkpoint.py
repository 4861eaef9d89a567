"""The checkpoint from which a stopped fine-tuning run goes on as if it had never stopped: bit for bit, on a CPU.

    <run>/checkpoints/step_<updates>/
        config.json, model.safetensors   the policy (or its adapter's files), as `from_pretrained` reads it
        optimizer.safetensors            tensors of the optimiser's state
        training_state.json              updates, random generators, parameter groups, what is learned; written last

Which frames an update takes and how their pictures are changed follow from the seed and the update's number, so
nothing needs to be kept of them. A run keeps its newest checkpoint only, and none once it has ended: then its policy
is the one in `best/`, and nothing may take an older one for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from vla_gym.errors import BadValue
from zoo.algorithms.rng import rng_state, set_rng_state
from zoo.distributed.process_group import ProcessGroup
from zoo.files import write_folder
from zoo.imitation.objective import Frames
from zoo.runs.folder import OPTIMIZER_FILE, RunFolder
from zoo.training.checkpoint import load_moments, read_state, save_policy, write_state
from zoo.training.optimizer_file import optimizer_groups, optimizer_tensors

_ALGORITHM = "sft"


class FinetuningCheckpoints:
    """Keeps a run's `checkpoints/`; every rank has one, rank 0's writes."""

    def __init__(self, run: RunFolder, policy: Any, process_group: ProcessGroup, frames: Frames) -> None:
        self._run = run
        self._policy = policy
        self._process_group = process_group
        self._digest = frames.digest()

    def save(self, updates: int) -> None:
        """Write the checkpoint after so many updates, in the place of the one before; every rank must call it."""
        moments = optimizer_tensors(self._policy, keep=self._process_group.is_first)
        if self._process_group.is_first:
            former = [step for step in self._run.saved_steps() if step != updates]
            write_folder(self._run.checkpoint(updates), partial(self._write, updates, moments))
            for step in former:
                shutil.rmtree(self._run.checkpoint(step), ignore_errors=True)
        # It is there for every rank.
        self._process_group.any(flag=False)

    def clear(self) -> None:
        """Remove what a run that has ended does not need."""
        if self._process_group.is_first:
            shutil.rmtree(self._run.checkpoints, ignore_errors=True)

    def _write(self, updates: int, moments: Mapping[str, Tensor], folder: Path) -> None:
        save_policy(self._policy, folder)
        save_file(dict(moments), folder / OPTIMIZER_FILE)
        write_state(
            folder,
            _ALGORITHM,
            counters={"num_timesteps": updates},
            digest=self._digest,
            param_groups=optimizer_groups(self._policy.optimizer),
            rng=rng_state(),
        )


def load_finetuning(policy: Any, folder: Path, frames: Frames) -> None:
    """Let a policy that was opened from a checkpoint learn on from there: its optimiser, and random generators.

    Before a `Learner` cuts it over ranks, of which there may be another number. Raises `BadValue` for a damaged
    checkpoint, and for one of a run that learned from other demonstrations.
    """
    state = read_state(folder, _ALGORITHM, "digest")
    if state["digest"] != frames.digest():
        raise BadValue(
            f"the dataset does not hold what '{folder}' learned from: its actions are others. Give the one it began "
            "with, as --dataset FOLDER"
        )
    load_moments(policy.optimizer, folder, state)
    set_rng_state(state["rng"])
