"""The hashes by which a checkpoint says what it holds: of every file, and of the record that says so."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.reading import file_sha256
from zoo.runs.folder import STATE_FILE

HASHES = "sha256"
"""Key of the hashes in `STATE_FILE`: name of a file -> SHA-256, its own name -> of all else that it says."""
_logger = logging.getLogger(__name__)


def sealed(state: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return `state` with the hashes of the checkpoint's other files, `hashes` over those it has, and with its own."""
    files = {**state.get(HASHES, {}), **hashes}
    whole = {**state, HASHES: files}
    return {**whole, HASHES: {**files, STATE_FILE: _own(whole)}}


def check_seal(folder: Path, state: Mapping[str, Any]) -> None:
    """Raise `BadValue` where a file of a checkpoint, or what its state says, is not what was written.

    Every byte is read. Checkpoints of version 0.1 have no hashes, which is noted.
    """
    hashes = state.get(HASHES)
    if hashes is None:
        _logger.info(f"checkpoint {folder} is of an older version: without hashes its content cannot be verified")
        return
    if not isinstance(hashes, dict) or hashes.keys() != {*state["files"], STATE_FILE}:
        raise BadValue(f"checkpoint '{folder}' is damaged: {STATE_FILE} does not have the hash of every file")
    for name, wanted in hashes.items():
        if (_own(state) if name == STATE_FILE else file_sha256(folder / name)) != wanted:
            raise BadValue(f"checkpoint '{folder}' is damaged: {name} does not hold what was written (SHA-256)")


def _own(state: Mapping[str, Any]) -> str:
    files = {name: value for name, value in state[HASHES].items() if name != STATE_FILE}
    return hashlib.sha256(json.dumps({**state, HASHES: files}, sort_keys=True).encode()).hexdigest()
