"""Checkpoints from which a run goes on as if it had never stopped: bit for bit, on a CPU.

    <run>/checkpoints/step_<n>/
        config.json, model.safetensors   the policy, as `from_pretrained` reads it (weights only for others)
        optimizer.safetensors            tensors of the optimiser's state
        rollout.safetensors              last observation
        reference.safetensors            with kl_reference: copy, the policy before its first update
        training_state.json              counters, random generators, environment, parameter groups
        manifest.json                    SHA-256 of every other file; written last

A checkpoint holds the last update boundary (`zoo.runs.train_state`): taken in the middle of a rollout, it
goes back to that rollout's start, whose weights are still the present ones. It appears under its name in one step
(rename), so what bears the name is complete, whatever kills the run. Nothing in it is a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from vla_gym.errors import BadValue, shown
from vla_gym.reading import size_of
from vla_policies.checkpoint_io.folder import WEIGHTS_FILE
from vla_policies.checkpoint_io.manifest import MANIFEST_FILE, Manifest, check_manifest, extend_manifest, read_manifest
from vla_policies.checkpoint_io.weights import check_finite
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.distributed.process_group import ProcessGroup
from zoo.files import content_of, damaged, read_json, remove_folder, write_folder
from zoo.runs.folder import OPTIMIZER_FILE, ROLLOUT_FILE, SCORE_FILE, STATE_FILE
from zoo.runs.train_state import Counters, TrainState
from zoo.training.optimizer_file import load_optimizer, optimizer_groups, optimizer_tensors

FORMAT_VERSION = 1
_STATE_KEYS = ("format_version", "algorithm", "counters", "param_groups", "rng")
"""Keys in the state of every checkpoint."""
_FORMER_HASHES = "sha256"
"""Key of the hashes in the state of checkpoints that have no manifest."""


# Writing --------------------------------------------------------------------------------------------


def save_checkpoint(algorithm: VLAOnPolicyAlgorithm, checkpoints: Path) -> Path:
    """Write `checkpoints/step_<n>` for the last update boundary; return it. Every rank must call it; rank 0 writes.

    What is written does not depend on the number of ranks, and any number of them can go on from it. Raises
    `BadValue` when the algorithm has no boundary yet, is inside an update, or depends on state that a checkpoint does
    not keep (`VecNormalize`).
    """
    state = algorithm.train_state
    if state is None:
        raise BadValue("no update boundary to save: call it from a callback of `learn`, or after `learn`")
    if algorithm.get_vec_normalize_env() is not None:
        raise BadValue("checkpoints do not keep the statistics of VecNormalize; use `model.save` and `env.save`")

    whole = state.gather(algorithm.process_group)
    facts: dict[str, Any] = {}
    if whole is not None:
        facts = {
            "counters": whole.counters.to_json(),
            "episodes": whole.episodes,
            "successes": whole.successes,
            "param_groups": optimizer_groups(algorithm.policy.optimizer),
            "env": whole.env,
            "rng": whole.rng,
            **({} if algorithm.demonstrations is None else {"demonstrations": algorithm.demonstrations.digests[0]}),
        }
        if whole.starts is not None:
            facts["starts"] = whole.starts

    def add_files(folder: Path) -> None:
        assert whole is not None
        arrays = {key: np.ascontiguousarray(array) for key, array in whole.arrays.items()}
        save_arrays(arrays, folder / ROLLOUT_FILE)
        if algorithm.config.kl_coef:
            algorithm.reference.save(folder)

    return write_checkpoint(
        checkpoints / f"step_{state.num_timesteps}",
        algorithm.policy,
        algorithm.process_group,
        type(algorithm).__name__,
        facts,
        add_files,
    )


def write_checkpoint(
    folder: Path,
    policy: Any,
    process_group: ProcessGroup,
    algorithm: str,
    facts: Mapping[str, Any],
    add_files: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Write the policy, its optimiser's state, what `add_files` adds, `STATE_FILE` with `facts`, and the manifest;
    return `folder`.

    Every rank must call it; rank 0 writes.
    """
    moments = optimizer_tensors(policy, keep=process_group.is_first)

    def write(folder: Path) -> None:
        save_policy(policy, folder)
        save_file(moments, folder / OPTIMIZER_FILE)
        add_files(folder)
        state = {"format_version": FORMAT_VERSION, "algorithm": algorithm, **facts}
        (folder / STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")
        extend_manifest(folder, sorted(file.name for file in folder.iterdir() if file.name != MANIFEST_FILE))

    if process_group.is_first:
        write_folder(folder, write)
    # It is there for every rank.
    process_group.any(flag=False)
    return folder


def save_policy(policy: Any, folder: Path) -> None:
    """Save the policy as `from_pretrained` reads it, or its bare weights where it has no such form."""
    if hasattr(policy, "save_trained"):
        policy.save_trained(folder)
        return
    # Plain policies may register one module under several names; safetensors wants memory of its own for each.
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}
    save_file(tensors, folder / WEIGHTS_FILE)


def save_best(policy: Any, folder: Path, *, success: float, num_timesteps: int) -> None:
    """Replace `folder` (a run's `best/`) by this policy, with its score beside it."""

    def write(target: Path) -> None:
        save_policy(policy, target)
        score = {"success": success, "num_timesteps": num_timesteps}
        (target / SCORE_FILE).write_text(json.dumps(score) + "\n", encoding="utf-8")

    write_folder(folder, write)


def best_success(folder: Path, *, keep_until: int | None = None) -> float | None:
    """Success of the policy in a run's `best/`; None when there is none yet.

    With `keep_until`, a policy of more simulator steps is removed first: the run goes on from before it.
    """
    path = folder / SCORE_FILE
    if not path.is_file():
        return None
    score = read_json(path)
    try:
        success, num_timesteps = float(score["success"]), int(score["num_timesteps"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged(path, "it must hold success and num_timesteps as numbers") from error
    if keep_until is None or num_timesteps <= keep_until:
        return success
    remove_folder(folder)
    return None


# Reading --------------------------------------------------------------------------------------------


def load_checkpoint(algorithm: VLAOnPolicyAlgorithm, folder: Path) -> None:
    """Restore `algorithm`, which was built with the run's settings and environment.

    Then `learn(total - algorithm.num_timesteps, reset_num_timesteps=False)` goes on. Raises `BadValue` naming
    the file or the setting when something is missing or of another run.
    """
    saved = read_state(folder, type(algorithm).__name__, "env", "episodes", "successes")
    if algorithm.demonstrations is not None and saved.get("demonstrations") not in algorithm.demonstrations.digests:
        raise BadValue(
            f"bc_dataset={shown(algorithm.config.bc_dataset)} does not hold what '{folder}' learned from: its images, "
            "sentences or actions are others. Put the demonstrations back that the run began with"
        )
    if algorithm.learns_sharded:
        raise BadValue("a sharded policy has begun to learn; load the checkpoint before the first update")
    algorithm.policy.backbone.restore(folder)
    if algorithm.config.kl_coef:
        algorithm.reference.load(folder)
    load_moments(algorithm.policy.optimizer, folder, saved)
    num_envs = algorithm.n_envs * algorithm.process_group.size
    own = slice(algorithm.first_env, algorithm.first_env + algorithm.n_envs)
    with content_of(folder / STATE_FILE):
        whole = TrainState(
            counters=Counters.from_json(saved["counters"]),
            episodes=tuple({name: float(value) for name, value in one.items()} for one in saved["episodes"]),
            successes=tuple(float(success) for success in saved["successes"]),
            rng=saved["rng"],
            env=saved["env"],
            arrays=_load_tensors(folder / ROLLOUT_FILE, load_arrays),
            starts=saved.get("starts"),
        )
        scattered = whole.scatter(own, num_envs)
        _check_arrays(whole.arrays, algorithm.observation_space, num_envs, folder / ROLLOUT_FILE)
        algorithm.restore_state(scattered)


def _check_arrays(arrays: Mapping[str, np.ndarray], space: Any, num_envs: int, path: Path) -> None:
    """Raise `BadValue` unless the arrays are observations in `space`, and starts of episodes, of so many
    environments."""
    spaces = {f"obs/{key}": part for key, part in space.spaces.items()} if hasattr(space, "spaces") else {"obs": space}
    wanted = {name: (num_envs, *part.shape) for name, part in spaces.items()} | {"episode_starts": (num_envs,)}
    got = {name: array.shape for name, array in arrays.items()}
    for name in sorted({*wanted, *got}):
        if got.get(name) != wanted.get(name):
            raise damaged(path, f"'{name}' has shape {got.get(name)}, this run's has {wanted.get(name)}")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise damaged(path, f"'{name}' holds numbers that are not finite")


def load_moments(optimizer: torch.optim.Optimizer, folder: Path, state: Mapping[str, Any]) -> None:
    """Restore `optimizer` from a checkpoint's `OPTIMIZER_FILE`; `state`: of `read_state`."""
    path = folder / OPTIMIZER_FILE
    with content_of(path):
        tensors = _load_tensors(path, load_file)
        check_finite(path, tensors)
        load_optimizer(optimizer, tensors, state["param_groups"], path)


def read_state(folder: Path, algorithm: str, *keys: str) -> dict[str, Any]:
    """Return the content of `STATE_FILE`; raises `BadValue` for lacking `keys`, damaged files, another algorithm's."""
    path = folder / STATE_FILE
    if not path.is_file():
        raise BadValue(f"checkpoint '{folder}' lacks {STATE_FILE}: it is no checkpoint, or incomplete")
    state = read_json(path)
    if missing := [key for key in (*_STATE_KEYS, *keys) if key not in state]:
        raise BadValue(f"checkpoint '{folder}' is damaged: {STATE_FILE} lacks {', '.join(missing)}")
    expected = {"format_version": FORMAT_VERSION, "algorithm": algorithm}
    for key, value in expected.items():
        if state[key] != value:
            raise BadValue(f"checkpoint '{folder}' has {key}={shown(state[key])}, this run has {shown(value)}")
    if (manifest := _manifest_of(folder, state)) is not None:
        check_manifest(folder, manifest)
    return state


def _manifest_of(folder: Path, state: Mapping[str, Any]) -> Manifest | None:
    """Return the manifest of a checkpoint; of one without, the hashes in its `state`. None in version 0.1."""
    hashes = state.get(_FORMER_HASHES)
    if (folder / MANIFEST_FILE).is_file() or not isinstance(hashes, dict):
        return read_manifest(folder)
    return Manifest({name: str(sha256) for name, sha256 in hashes.items() if name != STATE_FILE})


def _load_tensors(path: Path, load: Callable[[Path], Any]) -> Any:
    size_of(path)  # a pipe would never be opened
    try:
        return load(path)
    except (OSError, SafetensorError) as error:
        raise BadValue(f"'{path}' cannot be read as safetensors: {error}") from error
