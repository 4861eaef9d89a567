"""Which evaluation may be quoted for a run's policy: of exactly these weights, by the run's own protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.evaluation.evaluator import Rate
from zoo.evaluation.results import rate_values
from zoo.runs.folder import RunFolder, read_json
from zoo.runs.monitor import EVALUATIONS_FILE, read_evaluation_arrays

RESULTS_FILE, PROTOCOL_FILE = "results.json", "protocol.json"
_PROTOCOL = ("split", "tasks", "own_instructions", "options")
"""What an evaluation and its run must have in common."""


def find_evaluation(run: RunFolder, weights: str | None, step: int | None) -> Mapping[str, Any] | None:
    """The evaluation of exactly these weights, by the run's protocol and with the likeliest actions.

    `weights` is their fingerprint, `step` what they were trained for. zoo.evaluate's, else training's last, else its
    success rate alone.
    """
    results, last = run.path / RESULTS_FILE, run.path / "evaluation.json"
    if results.is_file():
        record = read_json(results)
        if is_of_policy(record, weights) and _is_by_protocol(record, run):
            return record
    if last.is_file() and step is not None:
        record = read_json(last)
        if record.get("num_timesteps") == step:
            return record
    if (run.path / EVALUATIONS_FILE).is_file() and step is not None:
        log = read_evaluation_arrays(run.path / EVALUATIONS_FILE)
        rows = log["successes"][log["timesteps"] == step]
        if len(rows):
            rate = Rate(label=run.config().env, successes=int(rows[-1].sum()), episodes=rows.shape[1])
            return {"success": rate_values(rate)}
    return None


def is_of_policy(record: Mapping[str, Any], weights: str | None) -> bool:
    """Is `record` of the weights with this fingerprint? One that names none is of no weights that are known."""
    return weights is not None and record.get("weights_sha256") == weights


def _is_by_protocol(record: Mapping[str, Any], run: RunFolder) -> bool:
    """Is it of deterministic actions, on the run's start states, told in its words?"""
    own = read_json(run.path / PROTOCOL_FILE) if (run.path / PROTOCOL_FILE).is_file() else {}
    evaluated = record.get("protocol", {})
    same = all(evaluated.get(name) == own[name] for name in _PROTOCOL if name in own)
    return bool(record.get("deterministic")) and record.get("env") == run.config().env and same
