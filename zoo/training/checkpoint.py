"""Checkpoints from which a run goes on as if it had never stopped: bit for bit, on a CPU.

    <run>/checkpoints/step_<n>/
        config.json, model.safetensors   the policy, as `from_pretrained` reads it
        optimizer.safetensors            tensors of the optimiser's state; see `zoo.training.sharded_checkpoint`
        rollout.safetensors              last observation
        reference.safetensors            with kl_reference: copy, the policy before its first update
        networks.safetensors             beside a replay: critics, their targets, their optimisers' state
        training_state.json              counters, random generators, environment, parameter groups
        manifest.json                    SHA-256 of every other file; written last

A checkpoint holds the last update boundary (`zoo.runs.train_state`): taken in the middle of a rollout, it
goes back to that rollout's start, whose weights are still the present ones. It appears under its name in one step
(rename), so what bears the name is complete, whatever kills the run. Nothing in it is a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from torch import Tensor
from torch.distributed.tensor import DTensor

from vla_gym.errors import BadValue, shown
from vla_policies.checkpoint_io.manifest import MANIFEST_FILE, Manifest, check_manifest, extend_manifest, read_manifest
from vla_policies.checkpoint_io.weights import check_finite, check_tensors, read_safetensors, write_safetensors
from zoo.algorithms.collecting import Collecting
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.distributed.fsdp import (
    MASTER,
    has_low_precision_parameters,
    optimizer_parameters,
    own_part,
    shard_like,
    whole,
    will_shard,
)
from zoo.distributed.process_group import ProcessGroup, lost_ranks
from zoo.files import content_of, read_json, remove_folder, write_folder
from zoo.rollout.collector import first_env
from zoo.runs.folder import NETWORKS_FILE, OPTIMIZER_FILE, ROLLOUT_FILE, SCORE_FILE, STATE_FILE
from zoo.runs.train_state import Counters, TrainState

if TYPE_CHECKING:  # PPO and GRPO need none of its modules
    from zoo.off_policy.algorithm import VLAOffPolicyAlgorithm

FORMAT_VERSION = 1
_STATE_KEYS = ("format_version", "algorithm", "counters", "param_groups", "rng")
"""Keys in the state of every checkpoint."""
_FORMER_HASHES = "sha256"
"""Key of the hashes in the state of checkpoints that have no manifest."""


@dataclass(frozen=True)
class Saving:
    """A checkpoint that is being written, or was."""

    folder: Path
    """Where it will be, once it is whole."""
    future: Future[Any] | None = None
    """Its end; None where it has ended."""

    def wait(self) -> Path:
        """Return the folder, which is there; raises the error with which a rank could not write its part."""
        if self.future is not None:
            from zoo.training.sharded_checkpoint import first_failure

            with lost_ranks(), first_failure():
                self.future.result()
        return self.folder


# Writing --------------------------------------------------------------------------------------------


def save_checkpoint(algorithm: VLAOnPolicyAlgorithm | VLAOffPolicyAlgorithm, checkpoints: Path) -> Path:
    """Write `checkpoints/step_<n>` for the last update boundary; return it. Every rank must call it."""
    return begin_checkpoint(algorithm, checkpoints).wait()


def begin_checkpoint(algorithm: VLAOnPolicyAlgorithm | VLAOffPolicyAlgorithm, checkpoints: Path) -> Saving:
    """As `save_checkpoint`; of a sharded policy returns once all is in main memory, from where it is written.

    Any number of ranks can go on from it. Raises `BadValue` when the algorithm has no boundary yet, or is inside an
    update.
    """
    state = algorithm.train_state
    if state is None:
        raise BadValue("no update boundary to save: call it from a callback of `learn`, or after `learn`")
    run = state.gather(algorithm.process_group)
    facts = {} if run is None else run.to_json()
    if not isinstance(algorithm, VLAOnPolicyAlgorithm):
        facts |= _replay_facts(algorithm)
    elif algorithm.demonstrations is not None:
        facts["demonstrations"] = algorithm.demonstrations.digests[0]

    def add_files(folder: Path) -> None:
        if run is not None:
            save_arrays({key: np.ascontiguousarray(array) for key, array in run.arrays.items()}, folder / ROLLOUT_FILE)
        if not isinstance(algorithm, VLAOnPolicyAlgorithm):
            write_safetensors(folder / NETWORKS_FILE, _network_tensors(algorithm))
        elif algorithm.config.kl_coef:
            algorithm.reference.save(folder)

    folder = checkpoints / f"step_{state.num_timesteps}"
    return write_checkpoint(
        folder, algorithm.policy, algorithm.process_group, type(algorithm).__name__, facts, add_files
    )


def _replay_facts(algorithm: VLAOffPolicyAlgorithm) -> dict[str, Any]:
    """Return the size of each rank's replay, and the parameter groups of the networks beside the policy."""
    assert algorithm.replay is not None
    algorithm.replay.flush()
    learning = ((name, one.optimizer) for name, one in algorithm.networks.items() if hasattr(one, "optimizer"))
    return {
        "replay": algorithm.process_group.all_gather_object(algorithm.replay_state),
        "networks": {name: optimizer.state_dict()["param_groups"] for name, optimizer in learning},
    }


def _network_tensors(algorithm: VLAOffPolicyAlgorithm) -> dict[str, Tensor]:
    """Return `<network>.weights.<tensor>` and, of those that learn, `<network>.moments.<parameter>.<name>`."""
    tensors: dict[str, Tensor] = {}
    for name, network in algorithm.networks.items():
        tensors |= {f"{name}.weights.{key}": x.cpu().contiguous() for key, x in network.state_dict().items()}
        if hasattr(network, "optimizer"):
            tensors |= {f"{name}.moments.{key}": x for key, x in optimizer_tensors(network).items()}
    return {key: whole(x.detach()).clone() for key, x in tensors.items()}


def write_checkpoint(
    folder: Path,
    policy: Any,
    process_group: ProcessGroup,
    algorithm: str,
    facts: Mapping[str, Any],
    add_files: Callable[[Path], None] = lambda folder: None,
) -> Saving:
    """Write the policy, its optimiser's state, what `add_files` adds, `STATE_FILE` with `facts`, and the manifest.

    Every rank must call it; rank 0 writes what is whole on all of them.
    """

    def fill(folder: Path) -> None:
        policy.save_trained(folder)
        add_files(folder)
        groups = policy.optimizer.state_dict()["param_groups"]
        state = {"format_version": FORMAT_VERSION, "algorithm": algorithm, **facts, "param_groups": groups}
        (folder / STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")

    if any(isinstance(parameter, DTensor) for parameter in optimizer_parameters(policy.optimizer)):
        from zoo.training.sharded_checkpoint import save_in_background

        return Saving(folder, save_in_background(folder, optimizer_tensors(policy), process_group, fill))

    def write(folder: Path) -> None:
        fill(folder)
        write_safetensors(folder / OPTIMIZER_FILE, optimizer_tensors(policy))
        extend_manifest(folder, sorted(file.name for file in folder.iterdir() if file.name != MANIFEST_FILE))

    if process_group.is_first:
        write_folder(folder, write)
    # It is there for every rank.
    process_group.any(flag=False)
    return Saving(folder)


def save_best(policy: Any, folder: Path, *, success: float, num_timesteps: int) -> None:
    """Replace `folder` (a run's `best/`) by this policy, with its score beside it."""

    def write(target: Path) -> None:
        policy.save_trained(target)
        score = {"success": success, "num_timesteps": num_timesteps}
        (target / SCORE_FILE).write_text(json.dumps(score) + "\n", encoding="utf-8")

    write_folder(folder, write)


def best_success(folder: Path, *, keep_until: int | None = None) -> float | None:
    """Return the success of the policy in a run's `best/`; None when there is none yet.

    With `keep_until`, a policy of more simulator steps is removed first: the run goes on from before it.
    """
    path = folder / SCORE_FILE
    if not path.is_file():
        return None
    score = read_json(path)
    with content_of(path):
        success, num_timesteps = float(score["success"]), int(score["num_timesteps"])
    if keep_until is not None and num_timesteps > keep_until:
        remove_folder(folder)
        return None
    return success


# Reading --------------------------------------------------------------------------------------------


def load_checkpoint(algorithm: VLAOnPolicyAlgorithm | VLAOffPolicyAlgorithm, folder: Path) -> None:
    """Restore `algorithm`, which was built with the run's settings and environment.

    Then `learn(total - algorithm.num_timesteps, reset_num_timesteps=False)` goes on. Raises `BadValue` naming
    the file or the setting when something is missing or of another run.
    """
    if not isinstance(algorithm, VLAOnPolicyAlgorithm):
        _load_replay_checkpoint(algorithm, folder)
        return
    group = algorithm.process_group
    share = slice(group.rank, None, group.size)
    saved = read_state(folder, type(algorithm).__name__, "env", "episodes", "successes", hashed=share)
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
    # Parts are read as such: whole, one machine's memory might not hold them for all its ranks.
    optimizer = algorithm.learner.raw_optimizer if will_shard() else algorithm.policy.optimizer
    load_moments(optimizer, folder, saved)
    _restore_run(algorithm, folder, saved)


def _load_replay_checkpoint(algorithm: VLAOffPolicyAlgorithm, folder: Path) -> None:
    """As `load_checkpoint`; the replay is read when `learn` begins. Raise `BadValue` for another number of ranks."""
    keys = ("env", "episodes", "successes", "replay", "networks")
    saved, group = read_state(folder, type(algorithm).__name__, *keys), algorithm.process_group
    if len(saved["replay"]) != group.size:
        raise BadValue(f"'{folder}' has replays of {len(saved['replay'])} processes, this run has {group.size}")
    algorithm.policy.backbone.restore(folder)
    load_moments(algorithm.policy.optimizer, folder, saved)
    path = folder / NETWORKS_FILE
    tensors = read_safetensors(path)
    for name, network in algorithm.networks.items():
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "moments": {}}
        for kind, part in parts.items():
            prefix = f"{name}.{kind}."
            part |= {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
        check_tensors(path, parts["weights"], network.state_dict())
        network.load_state_dict(parts["weights"])
        if name in saved["networks"]:
            state = blank_state(network.optimizer, parts["moments"], saved["networks"][name], path)
            for key, tensor in state.items():
                tensor.copy_(shard_like(tensor, parts["moments"][key]))
    _restore_run(algorithm, folder, saved)
    algorithm.replay_state = saved["replay"][group.rank]


def _restore_run(algorithm: Collecting, folder: Path, saved: Mapping[str, Any]) -> None:
    """Restore all of a checkpoint but weights and optimisers, of this rank's sub-environments."""
    envs = algorithm.envs
    first = first_env(envs)
    own = slice(first, first + envs.num_envs)
    with content_of(folder / STATE_FILE):
        run = TrainState(
            counters=Counters.from_json(saved["counters"]),
            episodes=tuple({name: float(value) for name, value in one.items()} for one in saved["episodes"]),
            successes=tuple(float(success) for success in saved["successes"]),
            rng=saved["rng"],
            env=saved["env"],
            arrays=_load_tensors(folder / ROLLOUT_FILE, load_arrays),
            starts=saved.get("starts"),
        )
        algorithm.restore_state(run.scatter(own, envs.num_envs * algorithm.process_group.size))


def read_state(folder: Path, algorithm: str, *keys: str, hashed: slice = slice(None)) -> dict[str, Any]:
    """Return the content of `STATE_FILE`; raises `BadValue` for lacking `keys`, damaged files, another algorithm's.

    Of the files that the manifest lists, those `hashed` are compared with it.
    """
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
    manifest = _manifest_of(folder, state)
    if manifest is not None:
        names = sorted(manifest.files)[hashed]
        check_manifest(folder, replace(manifest, files={name: manifest.files[name] for name in names}))
    elif "files" not in state:  # which version 0.1 wrote
        raise BadValue(f"checkpoint '{folder}' is damaged: it lacks {MANIFEST_FILE}")
    return state


def _manifest_of(folder: Path, state: Mapping[str, Any]) -> Manifest | None:
    """Return the manifest of a checkpoint; of one without, the hashes in its `state`. None in version 0.1."""
    hashes = state.get(_FORMER_HASHES)
    if (folder / MANIFEST_FILE).is_file() or not isinstance(hashes, dict):
        return read_manifest(folder)
    return Manifest({name: str(sha256) for name, sha256 in hashes.items() if name != STATE_FILE})


def _load_tensors(path: Path, load: Callable[[Path], Any]) -> Any:
    try:
        return load(path)
    except (OSError, SafetensorError) as error:
        raise BadValue(f"'{path}' cannot be read as safetensors: {error}") from error


# The optimiser's state ------------------------------------------------------------------------------


def optimizer_tensors(policy: Any) -> dict[str, Tensor]:
    """Return the state of `policy.optimizer` as `<parameter>.<name>` -> tensor, with the float32 masters of a policy
    that acts in less."""
    optimizer = policy.optimizer
    tensors: dict[str, Tensor] = {}
    if has_low_precision_parameters(policy):
        for index, parameter in enumerate(optimizer_parameters(optimizer)):
            tensors[f"{index}.{MASTER}"] = parameter.detach().float()
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise BadValue(f"cannot checkpoint {type(optimizer).__name__}: its state '{name}' is no tensor")
            tensors[f"{index}.{name}"] = value
    return tensors


def load_moments(optimizer: torch.optim.Optimizer, folder: Path, state: Mapping[str, Any]) -> None:
    """Restore `optimizer` from a checkpoint's files, of a sharded one this rank's part; `state`: of `read_state`."""
    from zoo.training.sharded_checkpoint import read_optimizer, read_optimizer_shapes  # brings FSDP

    where = folder / OPTIMIZER_FILE
    with content_of(where):
        shapes = _load_tensors(where, lambda _: read_optimizer_shapes(folder))
        tensors = blank_state(optimizer, shapes, state["param_groups"], where)
        _load_tensors(where, lambda _: read_optimizer(folder, tensors))
        check_finite(where, {key: own_part(tensor) for key, tensor in tensors.items()})


def blank_state(
    optimizer: torch.optim.Optimizer, shapes: Mapping[str, Tensor], groups: Sequence[dict[str, Any]], where: Path
) -> dict[str, Tensor]:
    """Give `optimizer` these parameter groups, and state like `optimizer_tensors`; return its tensors, to be filled.

    Raises `BadValue` for another optimiser's.
    """
    present = optimizer.state_dict()["param_groups"]
    sizes, wanted = ([len(group["params"]) for group in each] for each in (groups, present))
    if sizes != wanted:
        raise BadValue(f"'{where}' is of parameter groups of {sizes} tensors, the optimiser here has {wanted}")
    parameters = optimizer_parameters(optimizer)
    # Without the moments: torch would give them the precision of the weights.
    optimizer.load_state_dict({"state": {}, "param_groups": list(groups)})
    tensors = {}
    for key, like in shapes.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        if like.ndim and like.shape != parameter.shape:
            raise BadValue(
                f"'{where}' has '{key}' of shape {tuple(like.shape)}, its parameter has {tuple(parameter.shape)}"
            )
        if name == MASTER:
            tensors[key] = parameter.detach()
            continue
        dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
        # A count of steps stays in main memory.
        tensors[key] = torch.zeros_like(parameter, dtype=dtype) if like.ndim else torch.zeros((), dtype=dtype)
        optimizer.state[parameter][name] = tensors[key]
    return tensors
