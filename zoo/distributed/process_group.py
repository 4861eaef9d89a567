"""The processes of a run, their devices, and their collective operations on host data.

`accelerate launch` starts W processes of one command; each is a rank 0 .. W-1. Rank 0 alone prints and writes. Counts,
flags and episodes go over gloo as plain bytes; gradients go through Accelerate, see `zoo.distributed.learner`. A single
process communicates with none.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate import PartialState
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from torch import Tensor, nn

from vla_gym import __version__
from vla_gym.errors import BadValue, LostRank, shown
from zoo.config.run_config import RunConfig, to_plain

HOST_TIMEOUT = timedelta(hours=2)
"""How long ranks wait for each other: the slowest rollout, a video of rank 0. A rank that ends is noticed at once."""
DEVICE_TIMEOUT = timedelta(minutes=10)
"""How long a collective of tensors on devices may take: NCCL's own default, after which its watchdog ends the process.
Ranks have met over gloo before."""


class ProcessGroup:
    """This process among those of its run. Methods over ranks must be called by every rank."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        host_groups: tuple[Any, Any] = (None, None),
        gradient_group: Any = None,
        timeout: timedelta = HOST_TIMEOUT,
    ) -> None:
        self.host_group, self.background_group = host_groups
        """The gloo group of the host data, and another of the same ranks for a thread that writes meanwhile; None with
        one process."""
        self.gradient_group = gradient_group
        """Group in which gradients are averaged, where it is not all of the run's processes; None = all."""
        self.rank = rank
        """Number of this process."""
        self.size = size
        """W, processes of the run."""
        self._timeout = timeout

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def subgroup(self, numbers: Sequence[int]) -> ProcessGroup | None:
        """Return a group of the ranks `numbers`, as 0, 1, ...; None on the others. Every rank must call it."""
        if tuple(numbers) == tuple(range(self.size)):
            return self
        groups = _two_groups(list(numbers), self._timeout)
        gradient_group = dist.new_group(list(numbers))
        if self.rank not in numbers:
            return None
        return ProcessGroup(list(numbers).index(self.rank), len(numbers), groups, gradient_group, self._timeout)

    # All to all -------------------------------------------------------------------------------------

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, elementwise, float64 on the CPU."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def all_reduce_max(self, values: Tensor) -> Tensor:
        """Maximum over ranks, elementwise, float64 on the CPU."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        return bool(self.all_reduce_max(torch.tensor([float(flag)]))[0])

    def moments(self, values: Tensor) -> tuple[float, float]:
        """Mean and unbiased standard deviation over the entries of every rank; the latter 0 below two entries."""
        wide = values.detach().double().flatten().cpu()
        count, first = self.all_reduce_sum(torch.stack([torch.tensor(len(wide)).double(), wide.sum()]))
        if count == 0:
            return 0.0, 0.0
        mean = first / count
        squares = self.all_reduce_sum((wide - mean).square().sum()[None])[0]
        std = float((squares / (count - 1)).sqrt()) if count > 1 else 0.0
        return float(mean), std

    def all_gather(self, values: Tensor) -> Tensor:
        """Return the ranks' `[T, n]` (one shape everywhere) as `[T, W * n]`, in rank order."""
        if self.size == 1:
            return values
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        with lost_ranks():
            dist.all_gather(gathered, values.contiguous(), group=self.host_group)
        return torch.cat(gathered, dim=1)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return each rank's JSON value, in rank order."""
        return [json.loads(data) for data in self._collect(json.dumps(value).encode())]

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's JSON value."""
        return self.all_gather_object(value if self.is_first else None)[0]

    def gather(self, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return each rank's arrays, in rank order."""
        if self.size == 1:
            return [dict(arrays)]
        packed = save_arrays({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        return [load_arrays(data) for data in self._collect(packed)]

    # Flags ------------------------------------------------------------------------------------------

    def new_flag(self) -> str:
        """Return the name of an unset flag; the same on every rank, each of which must call it."""
        return f"flag {next(_flag_numbers)}"

    def set_flag(self, name: str) -> None:
        """Set a flag for every rank, without waiting for them."""
        if self.size > 1:
            self._store().set(name, "1")

    def has_flag(self, name: str) -> bool:
        """Whether some rank has set the flag; a request to rank 0's machine, cheap enough for every decision."""
        if self.size == 1:
            return False
        with lost_ranks():
            return bool(self._store().check([name]))

    # Inside -----------------------------------------------------------------------------------------

    @staticmethod
    def _store() -> dist.Store:
        return dist.PrefixStore("zoo", dist.distributed_c10d._get_default_store())

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        # A copy: reducing works in place.
        wide = values.detach().to("cpu", torch.float64, copy=True)
        if self.size > 1:
            with lost_ranks():
                dist.all_reduce(wide, op=how, group=self.host_group)
        return wide

    def _collect(self, data: bytes) -> list[bytes]:
        if self.size == 1:
            return [data]
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        lengths = self.all_gather(torch.tensor([[len(own)]]))[0].tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(own)] = own
        gathered = [torch.empty_like(padded) for _ in lengths]
        with lost_ranks():
            dist.all_gather(gathered, padded, group=self.host_group)
        return [tensor[:length].numpy().tobytes() for tensor, length in zip(gathered, lengths, strict=True)]


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Context manager that raises `LostRank` for a broken connection to another rank, and for one that is silent."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).lower()
        # gloo has no exception of its own.
        if not isinstance(error, dist.DistError) and not any(sign in said for sign in _GLOO_SIGNS):
            raise
        raise LostRank(
            "another process of the run, or its launcher, ended (its own message says why) or does not answer"
        ) from error


_flag_numbers = itertools.count(1)
"""Of the process, whose models share one store: what one of them has set must not stop another."""
_GLOO_SIGNS = ("connection", "gloo", "socket", "broken pipe", "timed out")


def launched_processes(environment: Mapping[str, str] = os.environ) -> int:
    """Number of processes of this command that a launcher has started.

    Raises `BadValue` where `accelerate launch --cpu --num_processes N` has started one instead of N, for DeepSpeed, for
    Accelerate's gradient accumulation, and for 8 bits.
    """
    steps = environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    alone = "WORLD_SIZE" not in environment and environment.get("ACCELERATE_USE_CPU", "").lower() == "true"
    refused = {
        "mixed_precision fp8 of accelerate is not supported. Allowed: no, bf16, fp16": (
            environment.get("ACCELERATE_MIXED_PRECISION") == "fp8"
        ),
        # Accelerate divides every loss by it, here for a step that takes whole minibatches.
        f"gradient_accumulation_steps {steps} of accelerate is not supported, and would divide the gradient; leave "
        "it out, and give micro_batch_size": steps != "1",
        "DeepSpeed is not supported; to shard a large policy use FSDP2: accelerate launch --config_file "
        "<one_node_fsdp2.yaml of hyperparams/accelerate>": (
            environment.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
        ),
        "accelerate launch --cpu starts one process, whatever --num_processes. For several on CPUs: accelerate "
        "launch --config_file <cpu.yaml of hyperparams/accelerate> --num_processes N -m zoo.train ...": (
            alone and "MASTER_ADDR" in environment
        ),
        # Nodes count their restarts each for itself, so none knows which addresses in a store they share are new.
        "torchrun --max-restarts on several nodes needs a new store for every restart: export "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all of them": (
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            and int(environment.get("GROUP_WORLD_SIZE", "1")) > 1
            and int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
        ),
    }
    for sentence, applies in refused.items():
        if applies:
            raise BadValue(sentence)
    return int(environment.get("WORLD_SIZE", "1"))


def join(device: str = "auto", timeout: timedelta = HOST_TIMEOUT) -> tuple[ProcessGroup, torch.device]:
    """Meet the other processes of the run and take a device: with several on GPUs, each its own.

    A process that does not answer within `timeout` ends the others.

    Raises `BadValue` for a device that is not here.
    """
    wanted = use_device(device)
    if wanted.index is not None and launched_processes() > 1:
        raise BadValue(f"with several processes each takes a GPU of its own; give --device cuda, not {device}")
    return _meet(wanted, timeout)


def current_process_group() -> ProcessGroup:
    """Return all processes of the run; meets them where `join` has not."""
    return _meet(check_device("auto"), HOST_TIMEOUT)[0]


def backends(device_type: str) -> str:
    """Backends of a rank's collectives, by the device of their tensors: on the CPU gloo, on GPUs NCCL.

    A rank without a GPU cannot have NCCL; gloo's part is the same on all ranks.
    """
    return "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"


def _meet(device: torch.device, timeout: timedelta) -> tuple[ProcessGroup, torch.device]:
    if launched_processes() == 1:
        return ProcessGroup(), device
    if not dist.is_initialized():
        store, rank, size = next(dist.rendezvous("env://", timeout=DEVICE_TIMEOUT))
        # torchrun's agent keeps its store over restarts, with the addresses of processes that are gone.
        store = dist.PrefixStore(f"restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backends(device.type), store=store, rank=rank, world_size=size, timeout=DEVICE_TIMEOUT)
    state = PartialState(cpu=device.type == "cpu")
    groups = _host_groups(timeout)
    return ProcessGroup(state.process_index, state.num_processes, groups, timeout=timeout), state.device


@functools.cache
def _host_groups(timeout: timedelta) -> tuple[Any, Any]:
    return _two_groups(None, timeout)


def _two_groups(ranks: list[int] | None, timeout: timedelta) -> tuple[Any, Any]:
    first, second = (dist.new_group(ranks, backend="gloo", timeout=timeout) for _ in range(2))
    return first, second


def use_device(name: str) -> torch.device:
    """Return the device of that name, at the start of a run, with faster float32 products where it is CUDA.

    They are then computed in TF32: inputs of 10 bits, float32 sums. A CPU's products are left alone. The GPU becomes
    the process's present one, of which pinned memory and generators are; another, which may belong to someone else, is
    not touched.
    """
    device = check_device(name)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        if device.index is not None:
            torch.cuda.set_device(device)
    return device


def check_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is CUDA where there is one. Raises `BadValue` for one that is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = re.fullmatch(r"cuda(?::(\d+))?", name)
    if index is None or int(index[1] or 0) >= count:
        raise BadValue(
            f"device '{name}' is not here: torch sees {count} CUDA devices. Allowed: auto, cpu, cuda, cuda:<index>"
        )
    return torch.device(name)


def own_block(count: int, process_group: ProcessGroup) -> slice:
    """Return this rank's block of `count` items (frames, start states); in blocks tasks change seldom.

    Rank 0, whose part is recorded, has the first one, however few there are.
    """
    rank, size = process_group.rank, process_group.size
    return slice(-(-rank * count // size), -(-(rank + 1) * count // size))


# Every rank is started by a command of its own. Gradients are averaged whatever the settings of the others, so a
# difference would change what is learned and show nowhere.

_OWN_SETTINGS = ("seed", "device", "num_threads", "env_options.num_workers")
"""Settings that may differ between machines; the seed is rank 0's for all."""
_COMPARED_NUMBERS = 64
"""Entries of each frozen weight that are compared."""


def check_same_command(config: RunConfig, step: int | None, process_group: ProcessGroup) -> None:
    """Raise `BadValue` where ranks differ in version, in settings or in the `step` they go on from.

    Every rank must call it.
    """
    facts: dict[str, Any] = {"version of vla-zoo": __version__, "checkpoint": step}
    for name, value in to_plain(config).items():
        facts |= (
            {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    check_same({name: value for name, value in facts.items() if name not in _OWN_SETTINGS}, process_group)


def check_same_weights(policy: nn.Module | None, process_group: ProcessGroup) -> None:
    """Raise `BadValue` where ranks have read other frozen weights; None: this rank has no policy.

    Trained weights follow from the seed, or are sent by the rank that learns. Every rank must call it.
    """
    hashes = process_group.all_gather_object(None if policy is None else frozen_sample(policy))
    if len({digest for digest in hashes if digest is not None}) > 1:
        raise BadValue(
            "the frozen weights of the policy are not the same on all ranks: give all machines the same files, or a "
            "revision of the Hub's"
        )


def check_same(facts: Mapping[str, Any], process_group: ProcessGroup) -> None:
    """Raise `BadValue` unless every rank has the same facts, JSON values. Every rank must call it."""
    first, *others = process_group.all_gather_object(dict(facts))
    for rank, other in enumerate(others, start=1):
        for name in sorted({*first, *other}):
            if other.get(name) != first.get(name):
                raise BadValue(
                    f"{name} is {shown(other.get(name))} on rank {rank}, {shown(first.get(name))} on rank 0: start all "
                    "processes with the same command, version and files"
                )


def frozen_sample(module: nn.Module) -> str:
    """Return the SHA-256 of some entries of every frozen weight in bfloat16, which every device keeps."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            numbers = parameter.detach().flatten()
            some = numbers[:: max(1, len(numbers) // _COMPARED_NUMBERS)].to("cpu", torch.bfloat16).contiguous()
            digest.update(name.encode())
            digest.update(some.view(torch.uint8).numpy().data)
    return digest.hexdigest()
