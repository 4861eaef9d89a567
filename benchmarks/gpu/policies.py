"""Policies with random weights: acting, updates, what bf16 does to ratios, compiled and captured passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.card import rate, wait
from benchmarks.gpu.models import backbone_options, build, observations
from benchmarks.gpu.settings import Figures, Settings, Skipped
from benchmarks.openvla_oft import update_ours
from vla_gym.errors import BadValue
from vla_policies import ActionSample, VLAPolicy
from vla_policies.footprint import Footprint
from vla_policies.modules.quantization import Scheme, check_installed
from vla_policies.modules.training import compile_blocks

GIB = 2**30


def acting(family: str, settings: Settings) -> Figures:
    """Decisions a second by batch, with the shares of arithmetic and memory traffic that they need at least."""
    policy = build(family, backbone_options(family, settings.size), settings.device)
    figures: Figures = {"parameters": float(sum(one.numel() for one in policy.backbone.parameters()))}
    weights = float(sum(one.nbytes for one in policy.backbone.parameters()))
    for batch in settings.batches:
        obs = observations(policy, batch)
        for _ in range(2):  # the second decision is recorded as a graph
            policy.act(obs)
        found = rate(lambda obs=obs: policy.act(obs), batch, settings.seconds, settings.device)  # type: ignore[misc]
        figures[f"batch {batch}, decisions/s"] = found
        figures[f"batch {batch}, ms"] = 1000 * batch / found
        if batch == min(settings.batches):
            figures["bytes/s"] = weights * found / batch  # every weight is read once for a batch
        if batch == max(settings.batches):
            figures["FLOP/s"] = act_flop(policy, obs) * found / batch
    return figures


def act_flop(policy: VLAPolicy, obs: Mapping[str, np.ndarray]) -> float:
    """Floating-point operations of acting for a batch, launched one by one: those in a graph are not counted."""
    graphs, allowed = policy.graphs, policy.cuda_graphs
    policy.graphs, policy.cuda_graphs = None, False
    with FlopCounterMode(display=False) as counter:
        policy.act(dict(obs))
    policy.graphs, policy.cuda_graphs = graphs, allowed
    return float(counter.get_total_flops())


def update(family: str, settings: Settings, scheme: Scheme | None = None) -> Figures:
    """One PPO step: samples a second, arithmetic done (what is computed again included), memory beside the plan.

    Adapters and critic train in OpenVLA-OFT, over weights in 8 or 4 bits where there is a `scheme`; the action expert
    trains in flow families, everything in nano.
    """
    options = backbone_options(family, settings.size, recompute=True)
    if scheme is not None:
        try:
            check_installed(scheme)
        except BadValue as error:
            raise Skipped(str(error)) from error
        options["quantization"] = scheme
    policy = build(family, options, settings.device)
    obs = observations(policy, settings.update_batch)
    sample = policy.act(obs)
    with FlopCounterMode(display=False) as counter:
        update_ours(policy, obs, sample, settings.micro_batch)
    flop = float(counter.get_total_flops())
    if settings.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(settings.device)
    found = rate(
        lambda: update_ours(policy, obs, sample, settings.micro_batch),
        settings.update_batch,
        settings.seconds,
        settings.device,
    )
    kept = [*policy.backbone.parameters(), *policy.backbone.buffers()]
    figures: Figures = {
        "samples": settings.update_batch,
        "scored at once": settings.micro_batch,
        "trained parameters": float(sum(one.numel() for one in policy.parameters() if one.requires_grad)),
        "samples/s": found,
        "FLOP/s": flop * found / settings.update_batch,
        "weights, GiB": sum(one.nbytes for one in kept) / GIB,
        "planned peak, GiB": planned_peak(family, policy, options, settings.micro_batch) / GIB,
    }
    if settings.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(settings.device) / GIB
        figures |= {"peak, GiB": peak, "peak / planned": peak / float(figures["planned peak, GiB"])}
    return figures


def planned_peak(family: str, policy: VLAPolicy, options: Mapping[str, Any], micro_batch: int) -> int:
    """Bytes that `zoo.plan` counts for weights, optimiser and the largest part of a step."""
    footprint = Footprint(family, policy.conventions, options)
    largest = max(footprint.update(micro_batch, accumulates=True), footprint.step())
    return footprint.frozen + 4 * footprint.trained + largest


def ratio_gap(family: str, settings: Settings) -> Figures:
    """How far the first ratio of an update is from 1, when acting and scoring had other batch sizes."""
    policy = build(family, backbone_options(family, settings.size), settings.device)
    small, large = sorted(settings.batches)[-2:]
    obs = observations(policy, large)
    parts = [slice(start, start + small) for start in range(0, large, small)]
    acted = [policy.act({key: value[part] for key, value in obs.items()}) for part in parts]
    record = {key: torch.cat([one.record[key] for one in acted]) for key in acted[0].record}
    logprob_BKA = torch.cat([one.logprob_BKA for one in acted])
    with torch.no_grad():
        at_once = policy.evaluate(obs, record).logprob_BKA
        alike = torch.cat(
            [
                policy.evaluate({key: value[part] for key, value in obs.items()}, one.record).logprob_BKA
                for part, one in zip(parts, acted, strict=True)
            ]
        )
    gap, same = ((scored - logprob_BKA).double().expm1().abs() for scored in (at_once, alike))
    return {
        "acted in": small,
        "scored in": large,
        "numbers": float(gap.numel()),
        "largest gap to 1": float(gap.max()),
        "mean gap to 1": float(gap.mean()),
        "largest gap, scored as acted": float(same.max()),
    }


def compiled(family: str, settings: Settings) -> Figures:
    """Acting and one update with `compile`, beside the same in plain torch."""
    options = backbone_options(family, settings.size)
    policy = build(family, options, settings.device)
    obs = observations(policy, settings.micro_batch)
    plain = _rates(policy, obs, settings)
    # Without a GPU the benchmark only tries the way there: no C++ compiler is asked for.
    backend = "inductor" if settings.device.type == "cuda" else "aot_eager"
    blocks = compile_blocks(policy.backbone, backend)
    fast = _rates(policy, obs, settings)
    return {
        "backend": backend,
        "compiled blocks": blocks,
        "batch": settings.micro_batch,
        **{f"{name}, plain": value for name, value in plain.items()},
        **{f"{name}, compiled": value for name, value in fast.items()},
        **{f"{name}, times": fast[name] / plain[name] for name in plain},
    }


def _rates(policy: VLAPolicy, obs: dict[str, np.ndarray], settings: Settings) -> dict[str, float]:
    num = len(obs["instruction"])
    sample: ActionSample = policy.act(obs)
    return {
        "decisions/s": rate(lambda: policy.act(obs), num, settings.seconds, settings.device),
        "samples/s": rate(lambda: update_ours(policy, obs, sample, num), num, settings.seconds, settings.device),
    }


def captured(family: str, settings: Settings) -> Figures:
    """Deciding from prepared inputs as one CUDA graph, beside the same launched operation by operation."""
    policy = build(family, backbone_options(family, settings.size), settings.device)
    batch = min(settings.batches)
    inputs = policy.prepare(observations(policy, batch))

    @torch.no_grad()
    def decide() -> ActionSample:
        return policy.backbone.act(inputs, policy.sampling, deterministic=False)

    plain = rate(decide, batch, settings.seconds, settings.device)
    if settings.device.type != "cuda":
        raise Skipped("a CPU has no CUDA graphs")
    side = torch.cuda.Stream(settings.device)
    side.wait_stream(torch.cuda.current_stream(settings.device))
    with torch.cuda.stream(side):
        for _ in range(3):  # workspaces are allocated before the capture
            decide()
    torch.cuda.current_stream(settings.device).wait_stream(side)
    wait(settings.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decide()
    fast = rate(graph.replay, batch, settings.seconds, settings.device)
    return {
        "batch": batch,
        "decisions/s, launched": plain,
        "decisions/s, one graph": fast,
        "times": fast / plain,
    }
