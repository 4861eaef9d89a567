"""The evaluation that may be quoted for a run's policy: of exactly these weights, by the run's own protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_gym.reading import file_sha256
from zoo.evaluation.statistics import rate_of_rounds, rate_values
from zoo.files import read_json
from zoo.runs.folder import (
    EVALUATION_FILE,
    EVALUATIONS_FILE,
    OPTIMIZER_FILE,
    PROTOCOL_FILE,
    REFERENCE_FILE,
    RESULTS_FILE,
    ROBUSTNESS_FILE,
    ROLLOUT_FILE,
    RunFolder,
)
from zoo.runs.monitor import read_evaluation_arrays

TRAINING_TENSORS = (OPTIMIZER_FILE, ROLLOUT_FILE, REFERENCE_FILE)
"""Tensors beside a policy in a checkpoint folder that are no part of it."""
_PROTOCOL = ("tasks", "own_instructions", "options")
"""Protocol entries that an evaluation and its run must have in common."""


def weights_sha256(folder: Path) -> str | None:
    """SHA-256 of the policy's *.safetensors in this folder; None where there are none, as for a Hub id or a family.

    Every byte is read, in blocks: 0.6 s of CPU for a GB where it was measured, or as long as the disk takes.
    """
    files = sorted(file for file in folder.glob("*.safetensors") if file.name not in TRAINING_TENSORS)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file_sha256(file)}  {file.name}\n".encode())
    return digest.hexdigest() if files else None


def find_evaluation(run: RunFolder, weights: str | None, step: int | None) -> Mapping[str, Any] | None:
    """Return the evaluation of exactly these weights, by the run's protocol and with deterministic actions.

    `weights` is their SHA-256, `step` the steps they were trained for. vla-zoo evaluate's record, else training's last,
    else its success rate alone.
    """
    results, last = run.path / RESULTS_FILE, run.path / EVALUATION_FILE
    if results.is_file():
        record = read_json(results)
        if is_of_weights(record, weights) and _is_by_protocol(record, run):
            return record
    if step is None:
        return None
    if last.is_file() and (record := read_json(last)).get("num_timesteps") == step:
        return record
    if (run.path / EVALUATIONS_FILE).is_file():
        log = read_evaluation_arrays(run.path / EVALUATIONS_FILE)
        if len(rows := log["successes"][log["timesteps"] == step]):
            config = run.config()
            return {"success": rate_values(rate_of_rounds(config.eval_env, rows[-1], config.evaluation.rounds))}
    return None


def find_robustness(run: RunFolder, weights: str | None) -> Mapping[str, Any] | None:
    """Return what `zoo.evaluate --robustness` found of exactly these weights, by their SHA-256."""
    file = run.path / ROBUSTNESS_FILE
    record = read_json(file) if file.is_file() else {}
    return record if is_of_weights(record, weights) else None


def is_of_weights(record: Mapping[str, Any], weights: str | None) -> bool:
    """Whether `record` names the weights with this SHA-256; a record without one matches none."""
    return weights is not None and record.get("weights_sha256") == weights


def _is_by_protocol(record: Mapping[str, Any], run: RunFolder) -> bool:
    """Whether it is of deterministic actions, the run's instructions, its start states or the test split's."""
    own = read_json(run.path / PROTOCOL_FILE) if (run.path / PROTOCOL_FILE).is_file() else {}
    evaluated = record.get("protocol", {})
    same = all(evaluated.get(name) == own[name] for name in _PROTOCOL if name in own)
    same = same and ("split" not in own or evaluated.get("split") in (own["split"], "test"))
    return bool(record.get("deterministic")) and record.get("env") == run.config().env and same
