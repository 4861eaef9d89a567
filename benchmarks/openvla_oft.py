"""OpenVLA-OFT at about 100 million parameters, ours against the plain way: `python -m benchmarks.openvla_oft`.

The plain way is what published scripts do: one observation at a time, scores of all 32064 words at every
position, one pass for the action, another for its log-probability, a third for the value. Both ways use the same
random weights, in the precision of the published ones (bfloat16; adapters and heads float32), and train the same LoRA
adapters and value head with AdamW, either beside every layer or beside those of the language model; then ours keeps
what the frozen image towers saw from acting for the update (`cache_features`). "Recompute" is ours with activations
computed again on the way back (`recompute`). Each runs in a process of its own, alternating; medians are printed.
Memory is the peak of the process over the second update less what it held before the network was built.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor
from torch.nn import functional

from vla_gym.observation import encode_instruction
from vla_policies import ActionSample, Conventions, VLAPolicy
from vla_policies.devices import upload
from vla_policies.modules.fused_lora import FusedLoraLinear
from vla_policies.modules.training import store_activations
from vla_policies.openvla.llama import run_layers
from vla_policies.openvla.network import LANGUAGE_TARGETS

BATCH = 8
"""Observations decided at a time, and decisions in one optimiser step."""
MICRO_BATCH = 1
"""Ours: decisions scored at a time; the smallest keeps the fewest activations and needs none computed again."""
SENTENCES = ("open the middle drawer", "put the bowl on the stove", "turn on the stove", "push the plate")
CLIP, LEARNING_RATE = 0.2, 1e-4
ADAPTERS: dict[str, dict[str, Any]] = {
    "every": {"lora": {"rank": 32}},
    "language": {"lora": {"rank": 32, "targets": LANGUAGE_TARGETS}},
}
"""Where adapters are, as `backbone_kwargs`."""
OURS_ALONE: dict[str, dict[str, Any]] = {"every": {}, "language": {"cache_features": 0.1}}
"""Options of ours alone, in an update; acting sees every image for the first time."""


def build(way: str, adapters: str, task: str, dtype: str) -> VLAPolicy:
    """The policy of all ways, LIBERO's shapes: 224 px, chunks of 8 x 7; the plain way has peft's own layers."""
    torch.manual_seed(0)
    conventions = Conventions(cameras=("image",), image_size=224, state_dim=0, chunk=8, action_dim=7)
    options = {"size": "100m", "dtype": dtype, "recompute": way == "recompute", **ADAPTERS[adapters]}
    if way != "plain" and task == "update":
        options |= OURS_ALONE[adapters]
    spaces = conventions.observation_space(), conventions.action_space()
    policy = VLAPolicy(*spaces, lambda _: LEARNING_RATE, backbone="openvla-oft", backbone_kwargs=options)
    if way == "plain":
        for layer in policy.modules():
            if isinstance(layer, FusedLoraLinear):
                layer.__class__ = LoraLinear
    return policy


def observations(num: int = BATCH) -> dict[str, np.ndarray]:
    """Images and sentences."""
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (num, 224, 224, 3), dtype=np.uint8),
        "instruction": np.stack([encode_instruction(SENTENCES[i % len(SENTENCES)]) for i in range(num)]),
    }


def clipped_loss(logprob: Tensor, old: Tensor, value: Tensor) -> Tensor:
    """PPO's loss for advantages of 1 and returns of 1."""
    ratio = (logprob - old).exp()
    surrogate = torch.minimum(ratio, ratio.clamp(1 - CLIP, 1 + CLIP))
    return (value - 1.0).square().mean() - surrogate.mean()


# Ours ------------------------------------------------------------------------------------------------


def act_ours(policy: VLAPolicy, obs: dict[str, np.ndarray]) -> ActionSample:
    """All observations in one pass."""
    return policy.act(obs)


def update_ours(
    policy: VLAPolicy, obs: dict[str, np.ndarray], sample: ActionSample, micro_batch: int = MICRO_BATCH
) -> None:
    """One optimiser step on all decisions, gradients gathered from parts of `micro_batch`, one pass each."""
    num = len(obs["image"])
    for start in range(0, num, micro_batch):
        part = slice(start, start + micro_batch)
        result = policy.evaluate(
            {key: value[part] for key, value in obs.items()},
            {key: value[part] for key, value in sample.record.items()},
        )
        old_BKA = upload(sample.logprob_BKA[part], result.logprob_BKA.device)
        loss = clipped_loss(result.logprob_BKA, old_BKA, result.value_B)
        (loss * len(result.value_B) / num).backward()
    policy.optimizer.step()
    policy.optimizer.zero_grad()


# The plain way -----------------------------------------------------------------------------------------


def one_by_one(obs: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Each observation alone."""
    for i in range(len(obs["image"])):
        yield {key: value[i : i + 1] for key, value in obs.items()}


def plain_pass(policy: VLAPolicy, obs: dict[str, np.ndarray]) -> tuple[Tensor, Tensor]:
    """Scores of all words `[S, W]` and hidden states `[S, D]` at the action slots, by way of all positions."""
    backbone: Any = policy.backbone
    segment, last_B, first_slot = backbone.sequence(policy.prepare(obs))
    network = backbone.network
    hidden_LD = network.final_norm(run_layers(network.language_model.model, segment, store_activations))[0]
    logits_LW = network.language_model.lm_head(hidden_LD).float()
    where_S = torch.cat([last_B, torch.arange(first_slot, first_slot + 55)])
    return logits_LW[where_S], hidden_LD[where_S]


def plain_log_probs(policy: VLAPolicy, obs: dict[str, np.ndarray]) -> Tensor:
    """Log-probabilities `[S, W]`, words that are no actions masked out."""
    logits_SW, _ = plain_pass(policy, obs)
    backbone: Any = policy.backbone
    first = backbone.network.first_action_id
    mask_W = torch.full(logits_SW.shape[1:], -torch.inf)
    mask_W[first : first + 256] = 0.0
    return functional.log_softmax(logits_SW + mask_W, dim=-1)


def plain_value(policy: VLAPolicy, obs: dict[str, np.ndarray]) -> Tensor:
    """The state's value, `[1]`."""
    backbone: Any = policy.backbone
    value: Tensor = backbone.state_values(plain_pass(policy, obs)[1][:1])
    return value


@torch.no_grad()
def act_plain(policy: VLAPolicy, obs: dict[str, np.ndarray]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Tokens, log-probabilities and value of each observation."""
    decided = []
    for one in one_by_one(obs):
        token_S = torch.multinomial(plain_log_probs(policy, one).exp(), 1)[:, 0]
        logprob_S = plain_log_probs(policy, one).gather(1, token_S[:, None])[:, 0]
        decided.append((token_S, logprob_S, plain_value(policy, one)))
    return decided


def update_plain(policy: VLAPolicy, obs: dict[str, np.ndarray], decided: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """One optimiser step, gradients gathered decision by decision."""
    for one, (token_S, old_S, _) in zip(one_by_one(obs), decided, strict=True):
        logprob_S = plain_log_probs(policy, one).gather(1, token_S[:, None])[:, 0]
        (clipped_loss(logprob_S, old_S, plain_value(policy, one)) / len(decided)).backward()
    policy.optimizer.step()
    policy.optimizer.zero_grad()


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "ours": (act_ours, update_ours),
    "recompute": (act_ours, update_ours),
    "plain": (act_plain, update_plain),
}


def measure(asked: argparse.Namespace) -> dict[str, float]:
    """Rate of one way at one task ("act" or "update") after one unmeasured turn, and the peak memory."""
    obs, now = observations(asked.decisions), CLOCKS[asked.clock]
    before = peak_bytes()
    policy = build(asked.way, asked.adapters, asked.task, asked.dtype)
    act, update = WAYS[asked.way]
    sample = act(policy, obs)
    turn = (lambda: act(policy, obs)) if asked.task == "act" else (lambda: update(policy, obs, sample))
    if asked.task == "update":
        turn()
    start = now()
    for _ in range(asked.repeats):
        turn()
    rate = asked.repeats * asked.decisions / (now() - start)
    network: Any = policy.backbone.network
    parameters = sum(one.numel() for one in network.parameters())
    return {"rate": rate, "GB": (peak_bytes() - before) / 1e9, "parameters": float(parameters)}


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_apart(way: str, adapters: str, task: str, asked: argparse.Namespace) -> dict[str, float]:
    """`measure` in a process of its own: once for the rate, once for the memory."""
    command = [sys.executable, "-m", "benchmarks.openvla_oft", "--way", way, "--adapters", adapters]
    command += ["--task", task, "--decisions", str(asked.decisions), "--clock", asked.clock]
    command += ["--dtype", asked.dtype]
    # Freed blocks go back at once: what the C library hoards says nothing about what is needed.
    frugal = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    results: list[dict[str, float]] = []
    for times, environment in ((asked.repeats, dict(os.environ)), (1, frugal)):
        done = subprocess.run(
            [*command, "--repeats", str(times)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        results.append(json.loads(done.stdout))
    return {**results[0], "GB": results[1]["GB"]}


def compare(adapters: str, task: str, label: str, asked: argparse.Namespace) -> None:
    """Print the medians of one task, all ways in turn, with their ratios to the plain way."""
    ways = [way for way in WAYS if task == "update" or way != "recompute"]
    found = [{way: run_apart(way, adapters, task, asked) for way in ways} for _ in range(asked.rounds)]
    for figure, name in (("rate", label), ("GB", "  peak memory, GB")):
        medians = {way: statistics.median(one[way][figure] for one in found) for way in ways}
        cells = []
        for way in WAYS:
            if way == "plain":
                cells.append(f"{medians[way]:>10.3f}")
            elif way in medians:
                ratio = medians[way] / medians["plain"] if figure == "rate" else medians["plain"] / medians[way]
                cells.append(f"{medians[way]:>10.3f} {ratio:>6.2f}x")
            else:
                cells.append(" " * 18)
        print(f"{name:<24}{''.join(cells)}", flush=True)


def main() -> None:
    """Alternate the ways and print medians with ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--decisions", type=int, default=BATCH, help="observations, and samples of an update")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for busy machines, one thread")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the weights")
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--adapters", choices=ADAPTERS)
    parser.add_argument("--task", choices=("act", "update"))
    arguments = parser.parse_args()
    if arguments.way:
        arguments.adapters, arguments.task = arguments.adapters or "every", arguments.task or "act"
        print(json.dumps(measure(arguments)))
        return
    print(
        f"{arguments.decisions} observations of one 224 px image, chunks of 8 x 7, {arguments.dtype}, ",
        end="",
    )
    print(f"{torch.get_num_threads()} threads, {arguments.clock} time;")
    print(f"medians of {arguments.rounds} alternating rounds, beside them the ratio to the plain way.")
    for adapters in [arguments.adapters] if arguments.adapters else ADAPTERS:
        print(f"\n{'LoRA on: ' + adapters:<24}{'ours':>10}{'recompute':>18}{'plain':>18}")
        for task, label in (("act", "decisions/s, acting"), ("update", "samples/s, PPO update")):
            if arguments.task in (None, task):
                compare(adapters, task, label, arguments)


if __name__ == "__main__":
    main()
