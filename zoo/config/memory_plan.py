"""Memory that a run takes of each rank, line by line: counted where it can be, else measured or allowed for."""

from __future__ import annotations

import functools
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from vla_gym.errors import BadValue
from vla_gym.observation import MAX_INSTRUCTION_BYTES
from vla_gym.reading import user_path
from vla_gym.specs import Benchmark
from vla_policies.checkpoint_io.folder import read_once
from vla_policies.checkpoint_io.hub import OWN_BASE, local_folder
from vla_policies.conventions import Conventions
from vla_policies.modules.lora_config import read_adapter_config
from vla_policies.registry import FAMILIES, family_class
from vla_policies.resolver import PolicyRef, adapter_folder, resolve_policy
from zoo.config.algorithm_configs import QCConfig, RecapConfig
from zoo.config.batch_plan import BatchPlan
from zoo.config.hyperparams import deep_merge
from zoo.config.run_config import RunConfig, env_conventions
from zoo.config.settings import Options, Settings

if TYPE_CHECKING:  # brings torch
    from vla_policies.footprint import Footprint

GIB = 2**30
ROLES = ("env", "rollout", "actor")
"""Of a rank: it simulates, decides, learns."""
REPLAY_ROW_BYTES = 4 * 8 + 3
"""Numbers and flags of a row of the replay, see `zoo.off_policy.replay`."""
TOKEN_BYTES, FLOAT_BYTES, PER_DECISION_BYTES = 8, 4, 34
"""Of `zoo.rollout.buffer.ChunkRolloutBuffer`, whose docstring has the formula."""
ADAM_BYTES, HALF = 16, 2
"""Of a trained float32 parameter: itself, its gradient and Adam's two moments; of a number in half precision."""
ALLOWANCE_BYTES = 2 * GIB
"""CUDA context, cuBLAS workspaces, gaps between blocks: an allowance, not a count."""
DRAWING_BYTES: Mapping[str, tuple[float, float, float]] = {
    "libero": (0.45e9, 0.09e9, 1.6e9),
    "metaworld": (0.3e9, 0.0, 0.3e9),
    "maniskill": (0.3e9, 0.0, 0.3e9),
}
"""Extra -> bytes on the GPU of a process that renders (EGL), with one model, for each further one, and at most: an
allowance of 0.2 GB for context and buffers, and the textures, with mipmaps in four channels, and meshes of the compiled
models, each stored once. All of LIBERO-130's are 1.42 GB, LIBERO-Long's 1.2, LIBERO-Goal's 0.3, Meta-World's 0.06."""
WORKER_BYTES: Mapping[str, tuple[float, float, float]] = {
    "libero": (1.2e9, 0.07e9, 0.01e9),
    "metaworld": (0.55e9, 0.02e9, 0.04e9),
    "maniskill": (0.9e9, 0.01e9, 0.01e9),
}
"""Extra -> resident bytes of a worker's first slot, of each further model that it has played, of each further slot:
bounds from measurements, see docs/libero.md. A worker keeps the models of all tasks. One of sixteen slots held, after
eight resets, 2.5 GB for LIBERO-130 and 1.2 GB for MetaWorld-MT50; one of 32 slots 1.42 GB for MetaWorld/reach, one of
eight 0.91 GB for ManiSkill/PickCube."""
GPU_MEMORY: Mapping[str, float] = {
    "rtx3090": 24.0,
    "rtx4090": 24.0,
    "l40s": 45.0,
    "a100": 80.0,
    "h100": 79.6,
    "h200": 140.4,
}
"""Card -> GiB that programs can have; A100 and H100 are those of 80 GB with SXM."""
ENOUGH = 8
"""Decisions scored at once beyond which a 7B's passes gain little: recomputing costs more than smaller passes do."""
PUBLISHED_ADAPTER: Options = {"rank": 32}
"""Of the adapters that recipes start from, before they are here: RLinf's lora_rank."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Roles of one process, and with how many it shares them."""

    roles: frozenset[str] = frozenset(ROLES)
    """Of `ROLES`."""
    num_learners: int = 1
    """Processes that learn together."""
    sharded: bool = False
    """Whether they shard what learns (FSDP2) instead of replicating it (DDP)."""
    passes: bool = True
    """Whether passes are counted too, which takes seconds."""


@dataclass(frozen=True)
class Need:
    """One entry of the sum."""

    where: Literal["device", "host", "disk"]
    """The policy's device, or the machine's memory. On a CPU both are the same."""
    what: str
    size: int
    """Bytes, of one rank."""


def needs(
    plan: BatchPlan, config: RunConfig, num_workers: int, rank: Rank | None = None, policy: PolicyRef | None = None
) -> list[Need]:
    """Return all that one rank needs, by default one that has every role and shares with none; see `policy_footprint`
    for `policy`."""
    rank, benchmark = rank or Rank(), config.benchmark
    lines = policy_needs(plan, config, rank, policy)
    if rank.roles & {"rollout", "actor"}:
        lines += rollout_needs(plan, config, benchmark)
    if "env" in rank.roles:
        lines += simulator_needs(benchmark, plan.envs_per_rank, num_workers)
        if rank.passes:
            lines += drawing_needs(benchmark, num_workers)
    if "actor" in rank.roles:
        lines += evaluation_needs(plan, config, num_workers)
    return lines


def total(lines: Sequence[Need], where: str) -> int:
    """Return the bytes of one place."""
    return sum(line.size for line in lines if line.where == where)


def need_lines(lines: Sequence[Need]) -> list[str]:
    """Return a line for each, then the sums by place, in GiB, of one rank."""
    places = sorted({line.where for line in lines})
    rows = [*lines, *(Need(where, "in all", total(lines, where)) for where in places)]
    return [f"  {row.size / GIB:8.3f} GiB  {row.where:<6}  {row.what}" for row in rows]


def rollout_needs(plan: BatchPlan, config: RunConfig, benchmark: Benchmark) -> list[Need]:
    """Return the rollout buffer of one rank, or its replay's files."""
    arrays = config.observation_layout.arrays().values()
    observation = MAX_INSTRUCTION_BYTES + sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
    decision = observation + (TOKEN_BYTES + FLOAT_BYTES) * plan.chunk * benchmark.action_dim + PER_DECISION_BYTES
    if isinstance(config.algorithm, QCConfig | RecapConfig):
        rows = -(-config.n_timesteps // (plan.chunk * plan.num_ranks))
        row = observation + FLOAT_BYTES * plan.chunk * (benchmark.action_dim + 1) + REPLAY_ROW_BYTES
        what = f"replay in the run folder, about {rows} decisions of {row:,} B (demonstrations come on top)"
        return [Need("disk", what, rows * row)]
    size = plan.decisions_per_env * plan.buffer_width * decision
    what = f"rollout buffer, {plan.decisions_per_env} x {plan.buffer_width} decisions of {decision:,} B"
    lines = [Need("host", what, size)]
    if config.algo_kwargs.get("resample_dead_groups"):
        # `zoo.rollout.collector.GroupCollector` keeps a round of candidates beside it.
        what = f"rollout buffer of resampled groups, {plan.decisions_per_env} x {plan.envs_per_rank} decisions"
        lines.append(Need("host", what, plan.decisions_per_env * plan.envs_per_rank * decision))
    return lines


def simulator_needs(benchmark: Benchmark, num_envs: int, num_workers: int, what: str = "simulators") -> list[Need]:
    """Return `num_envs` simulators of one rank; nothing if they are a few arrays in the process itself."""
    if benchmark.extra is None or benchmark.extra not in WORKER_BYTES or benchmark.batched:
        return []
    workers = max(1, min(num_workers, num_envs))
    first, per_model, per_slot = WORKER_BYTES[benchmark.extra]
    size = 0.0
    for number in range(workers):
        slots = (number + 1) * num_envs // workers - number * num_envs // workers
        size += first + (_count_models(benchmark) - 1) * per_model + (slots - 1) * per_slot
    return [Need("host", f"{num_envs} {what} in {workers} workers", int(size))]


def _count_models(benchmark: Benchmark) -> int:
    tasks = len(benchmark.tasks)
    return min(benchmark.num_models or tasks, tasks)


def drawing_needs(benchmark: Benchmark, num_workers: int) -> list[Need]:
    """Return the GPU memory of the processes that render; nothing for a benchmark without a GPU renderer."""
    if benchmark.extra is None or benchmark.extra not in DRAWING_BYTES:
        return []
    count = max(1, num_workers)
    first, per_model, most = DRAWING_BYTES[benchmark.extra]
    size = min(first + (_count_models(benchmark) - 1) * per_model, most)
    return [Need("device", f"allowance: {count} processes that render", int(count * size))]


def evaluation_needs(plan: BatchPlan, config: RunConfig, num_workers: int) -> list[Need]:
    """Return the simulators of one rank's evaluations, beside those that train."""
    num_ranks = max(1, config.num_envs // plan.envs_per_rank)
    num_envs = min(plan.envs_per_rank, -(-config.eval_episodes * config.evaluation.rounds // num_ranks))
    what = "simulators of evaluations"
    return simulator_needs(config.evaluated_benchmark, num_envs, num_workers, what) if num_envs else []


def policy_footprint(config: RunConfig, policy: PolicyRef | None = None) -> Footprint | None:
    """Return the run's policy without memory; None where neither the family nor a folder here says what it is.

    `policy`: the run's, where it was opened; without it the folder is.
    """
    family, options = config.family, dict(config.backbone_kwargs)
    if policy is not None and policy.folder is not None:
        options = dict(policy.request.options)  # a checkpoint that a run goes on from says itself what it is
        if policy.adapter is not None:
            with policy.opened():
                options["lora"] = _adapter_options(read_once(policy.adapter.folder, read_adapter_config))
        family, options = policy.family, dict(policy.reading(options=options).options)
    elif user_path(config.policy).is_dir() and config.policy not in FAMILIES:
        found = _of_folder(config, options)
        if found is None:
            return None
        family, options = found
    elif config.policy_kwargs.get("base") is not None:
        options.setdefault("lora", PUBLISHED_ADAPTER)
    if family not in FAMILIES:
        return None
    recompute = config.backbone_kwargs.get(family_class(family).recompute_option or "")
    conventions = replace(env_conventions(config.benchmark, config.env_options), action_spec=None)
    return _footprint(family, conventions, json.dumps(options, sort_keys=True), recompute)


@functools.lru_cache(maxsize=32)
def _footprint(family: str, conventions: Conventions, options: str, recompute: bool | None) -> Footprint:
    from vla_policies.footprint import Footprint

    return Footprint(family, conventions, json.loads(options), recompute)


def trains_in_16_bits(config: RunConfig, policy: PolicyRef | None = None) -> bool:
    """Whether weights that the run trains are smaller than float32; False where its policy is not known here."""
    counted = policy_footprint(config, policy)
    return counted is not None and counted.trained < 4 * counted.num_trained


def _adapter_options(values: Options) -> Settings:
    """Return `lora` of `backbone_kwargs` for an adapter's `adapter_config.json`."""
    return {"rank": values["r"], "alpha": values["lora_alpha"], "targets": values.get("target_modules") or ()}


def _of_folder(config: RunConfig, options: Options) -> tuple[str, Settings] | None:
    kwargs, folder = config.policy_kwargs, user_path(config.policy)
    family, base = kwargs.get("family"), kwargs.get("base")
    try:
        place, adapted = adapter_folder(folder), dict(options)
        if place is not None:
            values = read_adapter_config(place)
            adapted["lora"] = _adapter_options(values)
            model = base or str(values["base_model_name_or_path"])
            if model != OWN_BASE and local_folder(model, None if base else values.get("revision")) is None:
                return None if family is None else (family, adapted)
        ref = resolve_policy(config.policy, {**kwargs, "verify": False, "backbone_kwargs": adapted})
        return ref.family, dict(ref.options)
    except BadValue:
        return None  # training says what is wrong with it


def check_quantization(config: RunConfig) -> None:
    """Raise `BadValue` for quantised weights that would all train, before anything is read or started."""
    scheme = config.backbone_kwargs.get("quantization")
    # A folder may hold an adapter: opening it tells.
    adapted = "lora" in config.backbone_kwargs or config.policy_kwargs.get("base") is not None
    if scheme is not None and not adapted and not user_path(config.policy).is_dir():
        raise BadValue(
            f"quantization: {scheme} is for frozen weights, and here all of them train; add an adapter: "
            f"-params 'policy_kwargs:{{backbone_kwargs: {{quantization: {scheme}, lora: {{rank: 32}}}}}}'"
        )


def policy_needs(plan: BatchPlan, config: RunConfig, rank: Rank, policy: PolicyRef | None = None) -> list[Need]:
    """Return weights, gradients, optimiser and passes of one rank; empty if the policy's shape is not known here."""
    counted = policy_footprint(config, policy) if rank.roles & {"rollout", "actor"} else None
    if counted is None:
        return []
    lines = _weight_needs(counted, config, rank)
    if rank.passes:
        lines += _peaks(counted, plan, config, rank)
        lines.append(Need("device", "allowance: CUDA, cuBLAS", ALLOWANCE_BYTES))
    return lines


def _weight_needs(counted: Footprint, config: RunConfig, rank: Rank) -> list[Need]:
    """Return what stays on the device from pass to pass; exact, but for kept features, which grow to their most."""
    kept, settings = counted.backbone.kept, config.algorithm
    learns = "actor" in rank.roles and _policy_learns(config)
    sizes = {"weights, frozen": counted.frozen, f"weights, trained: {counted.num_trained:,} numbers": counted.trained}
    if settings.kl_coef and settings.kl_reference == "copy":
        sizes["the reference policy's own weights"] = counted.trained
    sizes["kept features, at most"] = (kept and kept.max_bytes) or 0
    if isinstance(settings, QCConfig):
        num = counted.num_judging(settings.num_critics)
        sizes[f"critics: {num:,} numbers, their targets, gradients and moments"] = num * (ADAM_BYTES + FLOAT_BYTES)
    elif isinstance(settings, RecapConfig):
        num = counted.num_judging(0)
        sizes[f"value function: {num:,} numbers, gradients and moments"] = num * ADAM_BYTES
    if learns and rank.sharded:
        sizes |= _sharded_sizes(counted, rank.num_learners)
    elif learns:
        sizes |= {"gradients": counted.trained, "Adam's two moments": 2 * counted.trained}
        if rank.num_learners > 1:
            sizes["gradients on their way to other ranks (DDP)"] = counted.trained
    return [Need("device", what, size) for what, size in sizes.items() if size]


def _policy_learns(config: RunConfig) -> bool:
    return not isinstance(config.algorithm, QCConfig) or config.algorithm.imitate != "none"


def _sharded_sizes(counted: Footprint, num_ranks: int) -> dict[str, int]:
    """Return what the policy that learns takes of a rank under FSDP2, beside the whole one that acts.

    Masters, gradients and Adam's moments are float32. Blocks are gathered one at a time, the next one meanwhile; the
    rest of the network is whole from the first layer to the last gradient. A unit's gradients are collected in the
    type of the passes and reduced in float32.
    """
    trained, blocks = counted.num_trained, counted.block_sizes()
    rest, largest = trained - sum(blocks), max(blocks, default=0)
    gathered = (HALF + HALF) * rest + max(2 * (HALF + HALF) * largest + FLOAT_BYTES * largest, FLOAT_BYTES * rest)
    return {
        f"shard of frozen weights, 1/{num_ranks}": -(-counted.frozen // num_ranks),
        f"shard of masters, gradients, moments, 1/{num_ranks}": -(-trained * ADAM_BYTES // num_ranks),
        "gathered weights and gradients of blocks": gathered,
    }


def _peaks(counted: Footprint, plan: BatchPlan, config: RunConfig, rank: Rank) -> list[Need]:
    """Return the largest of what acting, an update's passes and the optimiser's step hold at their peak, and what
    acting's graphs hold beside the others."""
    found, acting = dict[str, int](), 0
    if "rollout" in rank.roles:
        offloaded = config.offload_idle and "actor" in rank.roles
        moved = 3 * counted.trained if offloaded else 0
        acting = max(counted.act(plan.envs_per_stage) - moved, 0)
        found[f"acting for {plan.envs_per_stage}"] = acting
    if isinstance(config.algorithm, QCConfig):
        found[f"choosing chunks for {plan.batch_share} decisions of the replay"] = counted.act(plan.batch_share)
    if "actor" in rank.roles and _policy_learns(config):
        micro = plan.scored_at_once
        passes = counted.update(micro, accumulates=plan.batch_share > micro)
        found[f"an update's passes, {micro} decisions at once"] = passes
        step = counted.step()
        found["the optimiser's step"] = -(-step // rank.num_learners) if rank.sharded else step
    what = max(found, key=lambda name: found[name])
    lines = [Need("device", f"at the peak, {what}", found[what])]
    if len(found) > 1 and acting:
        most = max(size for name, size in found.items() if not name.startswith("acting"))
        lines.append(Need("device", "acting's CUDA graphs beside it", min(acting, most)))
    return lines


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Settings with which the same run fits a GPU."""

    micro_batch_size: int
    """Decisions scored at once."""
    options: Options
    """`backbone_kwargs` over the run's."""
    size: int
    """Bytes of a rank's GPU with them."""

    def words(self) -> str:
        """The settings in words."""
        again = ["activations computed again" if on else "activations kept" for on in self.options.values()]
        return ", ".join([f"{self.micro_batch_size} decisions scored at once", *again])


def fastest_fit(
    plan: BatchPlan,
    config: RunConfig,
    num_workers: int,
    rank: Rank,
    size: float,
    policy: PolicyRef | None = None,
    *,
    given: bool = False,
) -> Fit | None:
    """Return the fastest settings of the same computation that fit `size` bytes; None where none do.

    Activations are recomputed only where fewer than `ENOUGH` decisions at once fit without.

    :param given: whether what the run itself says stands: of the decisions the most, of activations what it says.
    """
    option = family_class(config.family).recompute_option if config.family in FAMILIES else None
    share, best = plan.scored_at_once if given else plan.batch_share, None
    sizes = [*(2**power for power in range((share - 1).bit_length())), share]
    if given and option is not None and config.backbone_kwargs.get(option) is not None:
        option = None
    for options in [{}] if option is None else [{option: False}, {option: True}]:
        changed = replace(config, policy_kwargs=deep_merge(config.policy_kwargs, {"backbone_kwargs": options}))

        def needed(micro: int, run: RunConfig = changed) -> int:
            return total(needs(replace(plan, micro_batch_size=micro), run, num_workers, rank, policy), "device")

        fitting = bisect_right(sizes, size, key=needed)
        micro = sizes[fitting - 1] if fitting else 0
        if micro and (best is None or micro > best.micro_batch_size):
            best = Fit(micro_batch_size=micro, options=options, size=needed(micro))
        if micro >= min(ENOUGH, share):
            break
    return best


def chosen_settings(
    plan: BatchPlan, config: RunConfig, num_workers: int, rank: Rank, size: float, policy: PolicyRef | None = None
) -> Fit | None:
    """Return what the run takes of a GPU with `size` free bytes: at most the decisions at once that it names, and its
    activations as it says, if it does. None if its policy is not counted.

    Where features are kept, a quarter is left to them, or less where they need less.
    """
    counted = policy_footprint(config, policy)
    if counted is None:
        return None
    wanted = counted.features * plan.decisions_per_env * plan.buffer_width
    room = size - min(wanted, size / 4)
    found = fastest_fit(plan, config, num_workers, rank, room, policy, given=True)
    if found is not None:
        return found
    option = counted.backbone.recompute_option  # the least that it can do
    options = {} if option is None or config.backbone_kwargs.get(option) is not None else {option: True}
    return Fit(micro_batch_size=1, options=options, size=int(size))
