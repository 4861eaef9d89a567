"""Policies on the emulated device beside the CPU: the same numbers, and what each step costs a GPU.

Run in a process of its own, see `conftest.py`; everything here returns plain data.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import emulated_device
import numpy as np
import torch
from emulated_device import DEVICE, watch
from stable_baselines3.common.callbacks import CallbackList
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import vla_gym
import zoo
from vla_gym.observation import encode_instruction
from vla_policies import Conventions, VLAPolicy
from vla_policies.actions.noise import SlotNoise
from vla_policies.graphs import Graphs
from vla_policies.lora_backbone import attach, merged_state
from vla_policies.modules.feature_cache import FeatureCache
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.modules.quantization import Scheme, quantize_layers
from vla_policies.openvla.config import SIZES
from vla_policies.types import tensors_of
from zoo.config.algorithm_configs import ALGORITHMS, SFTConfig
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup
from zoo.imitation.augmentation import Paraphrases
from zoo.imitation.frames import Frames
from zoo.imitation.loss import ImitationScorer
from zoo.training.sft import SFT

DEEP = (56, ((32, 24, 2), (48, 27, 3)), (64, 176, 32, 4))
"""The published networks' depth, tiny widths; size "deep" in the process that was started."""
PICTURES = {"camera_resize": "jpeg_lanczos3", "center_crop": True}
"""Preprocessing of LIBERO's fine-tunes."""
LORA = {"rank": 4}
TINY = {"size": "tiny", **PICTURES}
FAMILIES: dict[str, dict[str, Any]] = {
    "nano": {"size": "tiny", "width": 32, "heads": 2},
    "nano-flow": {"size": "tiny", "width": 32, "heads": 2},
    "openvla": TINY,
    "openvla-oft": TINY,
    "pi0": {"size": "tiny"},
    "pi05": {"size": "tiny"},
    "smolvla": {"size": "tiny"},
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {**options, **({"lora": LORA} if "openvla" in family else {})})
       for family, options in FAMILIES.items()},
    "openvla-oft without adapters": ("openvla-oft", TINY),
    "openvla-oft, recompute": ("openvla-oft", {**TINY, "lora": LORA, "recompute": True}),
    "openvla, recompute": ("openvla", {**TINY, "lora": LORA, "recompute": True}),
    "nano-flow, noise": ("nano-flow", {**FAMILIES["nano-flow"], "scheme": "flow_noise"}),
    "pi0, whole": ("pi0", {"size": "tiny", "train_expert_only": False, "recompute_activations": True}),
}  # fmt: skip


def start() -> None:
    """Prepare the process."""
    torch.set_num_threads(1)
    SIZES["deep"] = DEEP
    emulated_device.install()


@dataclass(frozen=True)
class Costs:
    """What one act, one evaluation and one update of a policy cost, as `Counts.summary`."""

    act: dict[str, int]
    evaluate: dict[str, int]
    update: dict[str, int]
    waits: list[str] = field(default_factory=list)
    """Every wait of the host, with its place."""
    gap: float = 0.0
    """Largest difference from the CPU's run, in actions, log-probabilities, values and weights after a step."""
    ratio_gap: float = 0.0
    """Largest |log-ratio| of the decision scored again by the same weights."""
    restored: bool = False
    """Whether a saved and restored policy decides alike, to the bit."""


def make_policy(family: str, options: Mapping[str, Any]) -> VLAPolicy:
    """A policy with random weights on the CPU, its tokens' probabilities apart."""
    torch.manual_seed(0)
    chunk = 1 if family == "openvla" else 4
    flow = family in ("pi0", "pi05", "smolvla")
    cameras = ("image", "wrist_image") if flow else ("image",)
    conventions = Conventions(cameras=cameras, image_size=64, state_dim=8, chunk=chunk, action_dim=7)
    spaces = conventions.observation_space(), conventions.action_space()
    policy = VLAPolicy(*spaces, lambda _: 1e-3, backbone=family, backbone_kwargs=options)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
            elif family.startswith("openvla"):
                parameter.mul_(2.0)
    return policy


def observations(num: int, *, one_length: bool = True) -> dict[str, np.ndarray]:
    """Pictures, states and sentences, of one length or of several."""
    rng = np.random.default_rng(0)
    sentences = ["reach the red block"] if one_length else ["reach the red block", "go", "open the drawer, please"]
    return {
        "image": rng.integers(0, 256, (num, 64, 64, 3), dtype=np.uint8),
        "wrist_image": rng.integers(0, 256, (num, 64, 64, 3), dtype=np.uint8),
        "state": rng.normal(size=(num, 8)).astype(np.float32),
        "instruction": np.stack([encode_instruction(sentences[i % len(sentences)]) for i in range(num)]),
    }


@dataclass
class Run:
    """What a policy computed in one act, one evaluation and one update, and what each cost."""

    numbers: list[Tensor] = field(default_factory=list)
    """Actions, log-probabilities and values acted, both evaluated, and the trained weights after a step."""
    counts: list[Any] = field(default_factory=list)
    """What `watch` gave for each of the three."""
    ratio_gap: float = 0.0

    def gap(self, other: Run) -> float:
        """Largest difference between the numbers of two runs."""
        pairs = zip(self.numbers, other.numbers, strict=True)
        return max(float((a.detach().cpu().float() - b.detach().cpu().float()).abs().max()) for a, b in pairs)


def act_and_update(
    policy: VLAPolicy, obs: dict[str, np.ndarray], watch: Callable[[], AbstractContextManager[Any]] = watch
) -> Run:
    """Act, evaluate, update; each is run before it is counted: the first time fills caches, the second decision of a
    GPU is recorded."""
    run, num = Run(), len(obs["state"])

    def act() -> Any:
        return policy.act(obs, noise=SlotNoise(0, (0, 0), np.arange(num)))

    def evaluate() -> Any:
        return policy.evaluate(obs, sample.record)

    for _ in range(2):
        act()
    with watch() as counts:
        sample = act()
    run.counts.append(counts)
    run.numbers += [sample.action_BKA, sample.logprob_BKA, sample.value_B]
    evaluate()
    with watch() as counts:
        result = evaluate()
    run.counts.append(counts)
    run.numbers += [result.logprob_BKA, result.value_B]
    here = result.logprob_BKA.detach().cpu()
    run.ratio_gap = float((here - sample.logprob_BKA.cpu()).abs().max())
    with watch() as counts:
        loss = -result.logprob_BKA.mean() + result.value_B.square().mean()
        loss.backward()
        policy.optimizer.step()
    run.counts.append(counts)
    policy.optimizer.zero_grad()
    run.numbers += [parameter for parameter in policy.parameters() if parameter.requires_grad]
    return run


def costs(family: str, options: Mapping[str, Any], *, num: int = 2, one_length: bool = True, cpu: bool = True) -> Costs:
    """Costs of a policy with fresh weights, and its distance from the same on the CPU."""
    policy, obs = make_policy(family, options), observations(num, one_length=one_length)
    beside = copy.deepcopy(policy) if cpu else None
    policy.to(DEVICE)
    policy._build(lambda _: 1e-3)
    run = act_and_update(policy, obs)
    gap = float("nan")
    if beside is not None:
        beside._build(lambda _: 1e-3)
        gap = run.gap(act_and_update(beside, obs))
    waits = [f"{step}: {n} x {where}" for step, c in zip(("act", "evaluate", "update"), run.counts, strict=True)
             for where, n in c.waits.items()]  # fmt: skip
    return Costs(*(c.summary() for c in run.counts), waits=waits, gap=gap, ratio_gap=run.ratio_gap,
                 restored=is_restored(policy, obs, DEVICE))  # fmt: skip


def is_restored(policy: VLAPolicy, obs: dict[str, np.ndarray], device: str) -> bool:
    """Whether the policy, saved and opened again on `device`, decides as before."""
    noise = np.arange(len(obs["state"]))
    want = policy.act(obs, noise=SlotNoise(0, (0, 0), noise)).action_BKA.cpu()
    with tempfile.TemporaryDirectory() as folder:
        policy.save_pretrained(Path(folder) / "saved")
        opened = VLAPolicy.from_pretrained(Path(folder) / "saved", device=device)
        got = opened.act(obs, noise=SlotNoise(0, (0, 0), noise)).action_BKA.cpu()
    return float((got - want).abs().max()) < 1e-3


@dataclass(frozen=True)
class Learnt:
    """What one iteration of PPO on Toy-Reach cost."""

    waits_per_decision: float
    """Waits of the host while it collects, over decisions of the batch."""
    waits_per_step: float
    """Waits inside the update's loop over minibatches, over optimiser steps."""
    gap: float
    """Largest difference of the weights from those of the same iteration on the CPU."""
    waits: list[str]


ONCE = (
    *("vla_policies/policy.py", "rollout/collector.py", "update_metrics.py", "process_group.py"),
    *("lora_backbone.py", "rollout/minibatches.py"),
)
"""Where the host waits for decisions, for the values at a rollout's end, for an update's metrics at its end, and for a
reference policy: whether adapters begin as no change, and its scores before the update."""


def learn(family: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Learnt:
    """Two rollouts with their updates, on the device and on the CPU. The second is counted: constants have gone up."""
    weights, waits, rates = [], [], [0.0, 0.0]
    for device in (DEVICE, "cpu"):
        model = make_ppo(family, options, settings, device)
        model.learn(1)
        policy = model.policy
        act, step = policy.act, policy.optimizer.step
        called = {"act": 0, "step": 0}

        def counted(name: str, function: Any, called: dict[str, int] = called) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                called[name] += 1
                return function(*args, **kwargs)

            return call

        policy.act, policy.optimizer.step = counted("act", act), counted("step", step)
        with watch() as counts:
            model.learn(1, reset_num_timesteps=False)
        del policy.act
        weights.append([parameter.detach().cpu() for parameter in policy.parameters()])
        if device == DEVICE:
            in_loop = sum(n for where, n in counts.waits.items() if not any(place in where for place in ONCE))
            acting = sum(n for where, n in counts.waits.items() if "vla_policies/policy.py" in where)
            rates = [acting / called["act"], in_loop / called["step"]]
            waits = [f"{n} x {where}" for where, n in counts.waits.items()] + [str(called)]
    gap = max(float((a - b).abs().max()) for a, b in zip(*weights, strict=True))
    return Learnt(rates[0], rates[1], gap, waits)


def make_ppo(family: str, options: Mapping[str, Any], settings: Mapping[str, Any], device: str) -> zoo.PPO:
    """PPO on Toy-Reach: two minibatches of eight decisions, twice an update."""
    chunk = 1 if family == "openvla" else 4
    common = {"backbone": family, "backbone_kwargs": options}
    sizes: dict[str, Any] = {"n_steps": 4, "batch_size": 8, "n_epochs": 2}
    env = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=chunk, seed=0)
    return zoo.PPO("VLAPolicy", env.as_sb3(), policy_kwargs=common, seed=0, device=device, **sizes, **settings)


def learn_from_replay(algo: str, settings: Mapping[str, Any]) -> float:
    """Largest distance between the weights beside a policy after some updates there and on the CPU."""
    module, _, name = ALGORITHMS[algo].implementation.partition(":")
    common = {"backbone": "nano-flow" if algo == "dsrl" else "nano", "backbone_kwargs": {"size": "tiny"}}
    weights = []
    for device in (DEVICE, "cpu"):
        envs = vla_gym.make_vec("Toy-Reach", 4, chunk=4, seed=0)
        algorithm = getattr(import_module(module), name)
        model = algorithm("VLAPolicy", envs, policy_kwargs=common, seed=0, device=device, n_steps=4, **settings)
        model.learn(120, CallbackList([]))
        assert model._n_updates > 1
        weights.append([x.cpu() for network in model.networks.values() for x in network.state_dict().values()])
        envs.close()
    return max(float((one - other).abs().max()) for one, other in zip(*weights, strict=True))


def imitate(family: str, options: Mapping[str, Any]) -> tuple[list[str], float]:
    """Waits of one step of fine-tuning, in three parts, and its loss's distance from the CPU's."""
    num, losses, waits = 6, [], []
    for device in (DEVICE, "cpu"):
        policy = make_policy(family, options).to(device)
        policy._build(lambda _: 1e-3)
        obs = {key: torch.from_numpy(value) for key, value in observations(num).items()}
        chunk = policy.conventions.chunk
        action_BKA = torch.linspace(-1.0, 1.0, num * chunk * 7).reshape(num, chunk, 7)
        frames = Frames(obs, action_BKA, torch.ones(num, chunk, dtype=torch.bool), weight_B=torch.ones(num))
        sentences = [torch.from_numpy(encode_instruction(one)) for one in ("reach the red block", "go")]
        words = Paraphrases(torch.stack(sentences)[None], torch.tensor([2]))
        settings = SFTConfig(dataset="unread", augment=True, micro_batch_size=2)
        sft = SFT(policy, frames, settings, seed=0, process_group=ProcessGroup(), paraphrases=words)
        learner = Learner(ImitationScorer(policy), policy.optimizer, 1.0)
        sft._update(torch.arange(num), learner, 3)
        with watch() as counts:
            losses.append(sft._update(torch.arange(num), learner, 3))
        if device == DEVICE:
            waits = [place for place, n in counts.waits.items() for _ in range(n)]
    return waits, abs(losses[0] - losses[1])


def merged_gap(scheme: Scheme | None) -> float:
    """Largest difference between weights merged on the device and on the CPU; raises unless all lie on the CPU."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64))
    if scheme is not None:
        quantize_layers(network, scheme, torch.float32)
    attach(network, LoraSettings(rank=2), ("0",))
    nn.init.normal_(network[0].lora_B["default"].weight)
    expected = merged_state(network)["0.weight"].detach()
    found = merged_state(network.to(DEVICE))["0.weight"].detach()
    if found.device.type != "cpu":
        raise AssertionError(f"merged weights lie on {found.device}")
    return float((found - expected).abs().max())


def evicted_rows() -> tuple[list[list[float]], list[list[int]], set[str]]:
    """Of a cache with room for two rows on the device and two in main memory: four rows read together, the places that
    were made for "ab", "cd", all four, "e" and "a", and the devices of what was read."""
    cache, made = FeatureCache(max_bytes=8, host_bytes=8), list[list[int]]()

    def rows(keys: str) -> Tensor:
        made.append([])

        def make(places: list[int]) -> tuple[Tensor]:
            made[-1].extend(places)
            return (torch.tensor([[float(ord(keys[place]))] for place in places]).to(DEVICE),)

        return cache.rows(keys, make)[0]

    read = [rows(keys) for keys in ("ab", "cd", "abcd", "e", "a")]
    return read[2].tolist(), made, {x.device.type for x in read}


@dataclass
class Recorded:
    """Recordings of decisions, which are then played without their Python."""

    gap: float = 0.0
    """Largest difference from the same decisions of a policy that records none."""
    recordings: list[int] = field(default_factory=list)
    """Recordings after decisions of two inputs, after a step of the optimiser, and after the weights have moved."""
    uploads: int = 0
    waits: int = 0
    drawn: list[str] = field(default_factory=list)
    """Operations on random numbers."""
    same_trace: bool = False
    """Whether two inputs of one size make the same operations on the same shapes."""


def recorded(family: str, options: Mapping[str, Any], *, keep: bool = False) -> Recorded:
    """Decisions as graphs: for two inputs, after an update in place, for a larger batch, after weights have moved."""
    policy = make_policy(family, options).to(DEVICE)
    policy._build(lambda _: 1e-2)
    if keep:
        policy.backbone.keep_features()
    policy.set_training_mode(False)
    plain, found, tapes = copy.deepcopy(policy), Recorded(), list[list[Any]]()

    def capture(call: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        call()
        with emulated_device.taped() as tape, watch() as counts:
            results = call()
        found.uploads += counts.uploads.total()
        found.waits += counts.waits.total()
        found.drawn += [name for name, *_ in tape if name in RANDOM]
        tapes.append(tape)
        return partial(emulated_device.play, tape), results

    policy.graphs = Graphs(capture)
    calls = 0

    def decide(num: int) -> Any:
        nonlocal calls
        calls += 1
        obs = {
            key: np.roll(x, calls, axis=1) if "image" in key else x
            for key, x in observations(num, one_length=False).items()
        }
        samples = [one.act(obs, noise=SlotNoise(0, (0, calls), np.arange(num))) for one in (policy, plain)]
        here, there = ([x for x in tensors_of(sample) if x.is_floating_point()] for sample in samples)
        found.gap = max(found.gap, *(float((a - b).abs().max()) for a, b in zip(here, there, strict=True)))
        return obs, samples[1]

    for _ in range(3):  # as it is, recorded, played
        obs, sample = decide(2)
    found.recordings.append(len(tapes))
    for one in (policy, plain):
        one.set_training_mode(True)
        result = one.evaluate(obs, sample.record)
        (result.logprob_BKA.mean() + result.value_B.mean()).backward()
        one.optimizer.step()
        one.optimizer.zero_grad()
        one.set_training_mode(False)
    decide(2)
    found.recordings.append(len(tapes))
    for num in (9, 10, 9):  # one graph, of 16 rows
        decide(num)
    for weight in policy.parameters():
        weight.inner = weight.inner.clone()
    decide(2)
    found.recordings.append(len(tapes))
    shapes = [
        [(name, [x.shape for x in tree_leaves(out) if isinstance(x, Tensor)]) for name, *_, out in tape]
        for tape in tapes
    ]
    size = found.recordings[0]
    found.same_trace = shapes[:size] == shapes[-size:]
    return found


RANDOM = ("rand", "randn", "bernoulli_", "uniform_", "normal_", "random_")
