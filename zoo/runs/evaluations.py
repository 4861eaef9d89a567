"""The evaluation that may be quoted for a run's policy: of exactly these weights, by the run's own protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_gym.reading import file_sha256
from vla_gym.specs import Benchmark
from vla_policies.checkpoint_io.json_records import to_json
from vla_policies.checkpoint_io.manifest import TENSORS
from vla_policies.conventions import Conventions
from vla_policies.resolver import PolicyRef
from zoo.config.settings import Options, Settings
from zoo.evaluation.statistics import rate_of_rounds, rate_values
from zoo.files import read_json
from zoo.runs.folder import (
    EVALUATION_FILE,
    EVALUATIONS_FILE,
    PROTOCOL_FILE,
    RESULTS_FILE,
    ROBUSTNESS_FILE,
    RunFolder,
    is_of_training,
)
from zoo.runs.monitor import read_evaluation_arrays

OF_WEIGHTS = ("layout", "commit", "model_sha256", "base_commit", "base_model_sha256", "notes")
"""Entries of a `policy_record` that say which weights it was, and not how they are read."""
_PROTOCOL = ("tasks", "own_instructions", "options")
"""Protocol entries that an evaluation and its run must have in common."""


def weights_sha256(folder: Path) -> str | None:
    """SHA-256 of the policy's weights in this folder, heads in files of their own included; None where there are none.

    Every byte is read, in blocks: 0.6 s of CPU for a GB where it was measured, or as long as the disk takes.
    """
    found = {file for pattern in TENSORS for file in folder.glob(pattern)}
    files = sorted(file for file in found if not is_of_training(file.name))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file_sha256(file)}  {file.name}\n".encode())
    return digest.hexdigest() if files else None


def policy_record(ref: PolicyRef, env: Conventions, benchmark: Benchmark | None = None) -> Settings:
    """Return how a policy is read, and of which weights it is, as JSON values: the entry `read_as` of every result.

    `ref` is read for its environment; of weights that are fresh or not here yet, `env` says observations and actions.
    `model_sha256` is of settings, statistics and samples of the weights, which takes no time.
    """
    record: Settings = {"family": ref.family, "layout": "fresh weights" if ref.fresh else "not here yet"}
    if ref.folder is not None and ref.model is not None:
        env = ref.conventions
        maker = ref.facts.maker or ref.model.config.get("model_type") or "openpi"
        record["layout"] = "vla-zoo" if ref.own_layout else str(maker)
        record |= ref.backbone_class.read_as(ref.header.model)
    spec = {} if env.action_spec is None else to_json(env.action_spec)
    record |= {"cameras": list(env.cameras), "image_size": env.image_size, **env.lengths, **spec}
    if benchmark is not None:
        record |= {"state": benchmark.protocol.get("state") if env.state_dim else "none", "hz": benchmark.control_hz}
    for name, folder in (("", ref.folder), ("base_", ref.model.folder if ref.model and ref.adapter else None)):
        if folder is not None:
            commit = {f"{name}commit": folder.name} if folder.parent.name == "snapshots" else {}
            record |= {**commit, f"{name}model_sha256": ref.model_sha256(folder)}
    return {**record, "notes": list(dict.fromkeys(ref.notes))}


def policy_line(record: Options) -> str:
    """Return the line of a `policy_record` with which every command that opens a policy begins."""
    words = []
    for name, value in record.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if name != "notes" and value not in (None, ""):
            words.append(f"{name.replace('_', ' ')} {text[:12] if name.endswith('sha256') else text}")
    return f"read as: {'; '.join(words)}"


def find_evaluation(run: RunFolder, weights: str | None, step: int | None) -> Mapping[str, Any] | None:
    """Return the evaluation of exactly these weights, by the run's protocol and with deterministic actions.

    `weights` is their SHA-256, `step` the steps they were trained for. Of vla-zoo evaluate's record and training's last
    the one of more episodes, else the success rate alone.
    """
    results, last = run.path / RESULTS_FILE, run.path / EVALUATION_FILE
    found: list[Mapping[str, Any]] = []
    if results.is_file():
        record = read_json(results)
        found += [record] if is_of_weights(record, weights) and _is_by_protocol(record, run) else []
    if step is not None and last.is_file() and (record := read_json(last)).get("num_timesteps") == step:
        found.append(record)
    if found:
        return max(found, key=lambda record: len(record.get("episodes", ())))
    if step is None:
        return None
    if (run.path / EVALUATIONS_FILE).is_file():
        log = read_evaluation_arrays(run.path / EVALUATIONS_FILE)
        if len(rows := log["successes"][log["timesteps"] == step]):
            config = run.config()
            return {"success": rate_values(rate_of_rounds(config.eval_env, rows[-1], config.evaluation.rounds))}
    return None


def find_robustness(run: RunFolder, weights: str | None) -> Mapping[str, Any] | None:
    """Return what `vla-zoo evaluate --robustness` found of exactly these weights, by their SHA-256."""
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
