"""The settings of PPO, GRPO and supervised fine-tuning: type, range, default and source of each, here alone.

`-params`, YAML entries, `--dry-run`, the plans and the search space read these classes, and a test compares them with
the algorithms' signatures. docs/ppo.md and docs/grpo.md say when to use which. Imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from vla_gym.errors import BadValue, unknown_name
from vla_gym.reading import user_path
from zoo.config.settings import (
    ANYTIME,
    Count,
    CountOrZero,
    Decisions,
    Fraction,
    NonNegative,
    Options,
    Passes,
    Positive,
    Range,
    Schedulable,
    Texts,
)

ClipHigh = Annotated[float, Range(above=0, high=100)]
Rate = Annotated[Schedulable, Range(low=0, high=1)]
"""A learning rate of Adam, whose first step moves every weight by about as much."""
LogprobLevel = Literal["token", "action", "chunk", "sequence"]
"""Extent of one probability ratio: a token, the A tokens of a step, or the whole executed chunk; "sequence" is the
geometric mean of the chunk's tokens."""
CreditLevel = Literal["chunk", "action"]
"""Extent of one reward, advantage or value: the whole executed chunk, or a step of it."""
LossWeight = Literal["decision", "trajectory"]
"""Units of equal weight in PPO's loss: decisions, or episodes, whatever their length."""
GroupLossWeight = Literal["trajectory", "token", "constant"]
"""Units of equal weight in GRPO's loss: episodes, ratios, or ratios with a constant divisor."""
GroupAdvantage = Literal["group_std", "centred", "rloo"]
"""An episode's score less its group's mean, over the group's standard deviation; that difference alone; the score less
the mean of the others."""
KLReference = Literal["adapter_off", "copy"]
"""The policy without its LoRA adapter, or a frozen second copy."""
StartSampling = Literal["uniform", "learnability"]
"""How a rollout's start states are drawn: all alike, or in proportion to p (1 - p) of their recent success rates p."""
ValueClip = Literal["replace", "max"]
"""`replace`: the clipped value stands in for the value (SB3). `max`: the worse of both errors counts (PPO2, RLinf)."""
Imitate = Literal["all", "better_half", "none"]
"""Decisions of the replay that a policy imitates."""
AdvantageLabel = Literal["value", "success"]
"""Origin of the sign of an advantage."""
Indicator = Literal["prompt", "filter"]
"""Use of that sign."""
NoiseReward = Literal["step_cost", "environment"]
"""Reward of a decision of SAC's."""
SearchSpace = Mapping[str, Options | Sequence[Any]]
"""Setting -> what `vla-zoo optimize` draws it from: `{low, high, log}` of a float, or the values to choose from."""
_SEARCHED: SearchSpace = {
    "learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
    "n_epochs": [1, 2, 3, 5],
    "clip_range": [0.1, 0.2, 0.3],
    "max_grad_norm": [0.5, 1.0, 5.0],
}
"""Values that `vla-zoo optimize` draws from, for either algorithm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OnPolicyConfig:
    """Settings that PPO and GRPO share; a schedule is a mapping such as `{schedule: linear, start: 3.0e-4}`."""

    implementation: ClassVar[str]
    """"module:Class", imported only when a run starts."""
    search_space: ClassVar[SearchSpace]
    """Without `vla-zoo optimize --space`."""

    learning_rate: Rate
    """Of the policy; `policy_kwargs value_lr` gives the critic its own."""
    batch_size: Decisions
    """Decisions of one optimiser step, all ranks together."""
    n_epochs: Passes
    """Passes over a rollout. arXiv:1707.06347."""
    clip_range: Annotated[Schedulable, Range(low=0, high=1)] = 0.2
    """The ratio's bounds are 1 - clip_range and 1 + clip_range. arXiv:1707.06347, eq. 7."""
    clip_range_high: ClipHigh | None = None
    """Upper bound where it differs, "clip-higher"; None = as `clip_range`. DAPO, arXiv:2503.14476, section 3.1."""
    ent_coef: NonNegative = 0.0
    """Weight of the entropy bonus. arXiv:1707.06347, eq. 9."""
    max_grad_norm: Positive
    """Global norm at which a gradient is cut, critic included."""
    target_kl: Annotated[float, Range(above=0, high=1000)] | None = None
    """An update ends before the step at which KL (k3) exceeds 1.5 times this; None = never. SB3."""
    logprob_level: LogprobLevel
    """Extent of one ratio. RLinf; "sequence": GSPO, arXiv:2507.18071."""
    recompute_logprobs: bool = False
    """Whether the rollout is scored again in the training path before the first step. RLinf, pull request 1534."""
    entropy_level: LogprobLevel | None = None
    """Extent of one entropy of the bonus; None = as `logprob_level`. RLinf's `entropy_type`."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to a reference policy, per token (k3 estimate). arXiv:2402.03300, eq. 4."""
    kl_reference: KLReference = "adapter_off"
    """The reference policy; "adapter_off" needs an adapter that is zero when training begins."""
    micro_batch_size: Decisions | None = None
    """Decisions scored at once by one rank; None = all of its minibatch."""
    masked_minibatches: bool = False
    """Whether minibatches also hold places without a loss, which shrink the gradient. RLinf."""
    bc_coef: NonNegative = 0.0
    """Weight of the loss of imitation that every step of the policy adds. DAPG, arXiv:1709.10087, eq. 4."""
    bc_dataset: Texts | None = None
    """LeRobotDataset folder of demonstrations, or several, that are imitated; needs `bc_coef`."""
    start_sampling: StartSampling = "uniform"
    """How start states, and with them tasks, are drawn. "learnability": arXiv:2408.15099."""

    def __post_init__(self) -> None:
        """Raise `BadValue` for settings that contradict each other; their types and ranges are checked before."""
        if bool(self.bc_coef) != bool(self.bc_dataset):
            raise BadValue(
                "bc_dataset, a folder of demonstrations, needs bc_coef above 0, e.g. bc_coef:0.1, and that needs a "
                f"bc_dataset; got bc_dataset={self.bc_dataset!r} and bc_coef={self.bc_coef:g}"
            )
        if self.bc_dataset and not isinstance(self.bc_dataset, str):
            check_once(self.bc_dataset, "bc_dataset")

    @property
    def bc_folders(self) -> tuple[Path, ...]:
        """Folders of the demonstrations."""
        return folders_of(self.bc_dataset)


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOConfig(OnPolicyConfig):
    """Settings of `zoo.PPO`; the defaults are Stable-Baselines3's where it has the setting."""

    implementation: ClassVar[str] = "zoo.algorithms.ppo:PPO"
    search_space: ClassVar[SearchSpace] = {
        **_SEARCHED,
        "gamma": [0.9, 0.95, 0.99, 1.0],
        "gae_lambda": [0.9, 0.95, 1.0],
        "ent_coef": {"low": 1e-5, "high": 1e-2, "log": True},
        "vf_coef": [0.1, 0.5, 1.0],
    }

    # Described above; of these SB3 has no `logprob_level`.
    learning_rate: Rate = 3e-4
    batch_size: Decisions = 64
    n_epochs: Passes = 10
    max_grad_norm: Positive = 0.5
    logprob_level: LogprobLevel = "action"
    n_steps: Decisions = 2048
    """T, decisions of each environment in a rollout."""
    rounds_per_update: Count | None = None
    """Rounds of one episode per environment in a rollout, instead of `n_steps` with automatic resets. RLinf."""
    gamma: Fraction = 0.99
    """Discount per decision, or per simulator step with `reward_level` "action". arXiv:1506.02438, eq. 16."""
    gae_lambda: Fraction = 0.95
    """Lambda of the advantage estimate, likewise."""
    clip_range_vf: Annotated[Schedulable, Range(above=0)] | None = None
    """How far a value may move; None = any distance."""
    normalize_advantage: bool = True
    """Whether advantages are normalised, once over the whole rollout and all ranks."""
    vf_coef: NonNegative = 0.5
    """Weight of the value error. arXiv:1707.06347, eq. 9."""
    value_clip: ValueClip = "replace"
    """How `clip_range_vf` acts; "max" is RLinf's."""
    huber_delta: Positive | None = None
    """Huber's error, with its factor 1/2, instead of the square. RLinf: 10."""
    critic_warmup_updates: CountOrZero = 0
    """First updates, one for each rollout, that train the critic alone. RLinf's `critic_warmup_steps`."""
    critic_epochs: CountOrZero = 0
    """Passes over a rollout that train the critic alone, after those of the policy, which `target_kl` may have ended.
    Spinning Up's `train_v_iters`."""
    reward_level: CreditLevel = "chunk"
    """Extent of one reward. RLinf's `reward_type`."""
    value_level: CreditLevel = "chunk"
    """Extent of one value; "action" needs `reward_level` "action". RLinf's `value_type`."""
    loss_weight: LossWeight = "decision"
    """Units of equal weight in both losses; "trajectory" is RLinf's where success masks the rest of an episode."""
    bootstrap_time_limit: bool = True
    """Whether an episode cut off by its time limit is worth the value of its last observation."""
    bootstrap_termination: bool = False
    """Whether an episode that the task's own rule ended is worth that value, too. RLinf's `bootstrap_type: always`."""

    def __post_init__(self) -> None:
        OnPolicyConfig.__post_init__(self)
        if self.value_level == "action" and self.reward_level == "chunk":
            raise BadValue(
                "value_level='action' gives every step a value, of which reward_level='chunk' trains the first alone; "
                "set reward_level='action' too"
            )
        if self.reward_level == "action" and self.logprob_level in ("chunk", "sequence"):
            raise BadValue(
                "reward_level='action' gives every step an advantage, but "
                f"logprob_level='{self.logprob_level}' has one ratio for all; set logprob_level to 'action' or 'token'"
            )
        for name in ("critic_warmup_updates", "critic_epochs"):
            if getattr(self, name) and not self.vf_coef:
                raise BadValue(f"{name} needs vf_coef > 0, got {getattr(self, name)} and vf_coef {self.vf_coef}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GRPOConfig(OnPolicyConfig):
    """Settings of `zoo.GRPO`; the group's size is the environment's `group_size`."""

    implementation: ClassVar[str] = "zoo.algorithms.grpo:GRPO"
    search_space: ClassVar[SearchSpace] = {
        **_SEARCHED,
        "clip_range_high": [0.2, 0.28, 0.4],
    }

    # Described above; `clip_range_high` is DAPO's.
    learning_rate: Rate = 2e-5
    batch_size: Decisions = 256
    n_epochs: Passes = 1
    max_grad_norm: Positive = 1.0
    logprob_level: LogprobLevel = "token"
    clip_range_high: ClipHigh | None = 0.28
    advantage: GroupAdvantage = "group_std"
    """Estimate of an episode's advantage. arXiv:2402.03300; "centred": arXiv:2503.20783; "rloo": arXiv:2402.14740."""
    loss_weight: GroupLossWeight = "trajectory"
    """Units of equal weight in the loss. "token": DAPO, arXiv:2503.14476; "constant": Dr. GRPO, arXiv:2503.20783."""
    rollouts_per_update: Passes = 1
    """Rounds of one episode per environment in an update. RLinf's `rollout_epoch`."""
    score_bounds: tuple[float, float] | None = None
    """Keep groups whose mean score lies between these only. SimpleVLA-RL: 0.1 to 0.9 of success."""
    gamma: Fraction = 1.0
    """Discount per decision of an episode's score; below 1 a quick success scores more than a slow one."""
    resample_dead_groups: CountOrZero = 0
    """Further rounds, at most, that replace zero-variance groups. DAPO, arXiv:2503.14476, section 3.2."""
    max_barren_episodes: CountOrZero = 256
    """Episodes without a success or a usable group that end the run; 0 = never. 0 of 256 is below 1.5 % (Wilson)."""

    def __post_init__(self) -> None:
        OnPolicyConfig.__post_init__(self)
        if self.masked_minibatches and self.loss_weight != "trajectory":
            raise BadValue(
                "masked_minibatches weighs every episode by 1 / (all episodes), got "
                f"loss_weight={self.loss_weight!r}; leave one of the two out"
            )
        if self.score_bounds is not None and not self.score_bounds[0] < self.score_bounds[1]:
            raise BadValue(f"score_bounds must be (low, high) with low below high, got {tuple(self.score_bounds)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyConfig:
    """Settings of algorithms that learn from a replay of decisions."""

    implementation: ClassVar[str]
    search_space: ClassVar[SearchSpace] = {"learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}}
    bc_coef: ClassVar[float] = 0.0
    kl_coef: ClassVar[float] = 0.0
    kl_reference: ClassVar[KLReference] = "copy"
    n_epochs: ClassVar[int] = 1

    learning_rate: Rate = 1e-4
    """Of the policy."""
    batch_size: Decisions = 128
    """Decisions of one optimiser step, all ranks together."""
    micro_batch_size: Decisions | None = None
    """Decisions of them in the policy at once; None = all of a rank's."""
    max_grad_norm: Positive = 1.0
    """Global norm at which a gradient is cut."""
    n_steps: Decisions = 8
    """Decisions of each environment between two updates."""
    demonstrations: Texts | None = None
    """LeRobotDataset folder of demonstrations, or several, that the replay holds from the beginning."""
    demonstration_share: Fraction = 0.5
    """Share of a batch that is drawn from them. RLPD, arXiv:2302.02948."""

    def __post_init__(self) -> None:
        """Raise `BadValue` for a folder of demonstrations that is named twice."""
        if self.demonstrations and not isinstance(self.demonstrations, str):
            check_once(self.demonstrations, "demonstrations")

    @property
    def bc_folders(self) -> tuple[Path, ...]:
        """Folders of the demonstrations."""
        return folders_of(self.demonstrations)

    def updates_of(self, decisions: int) -> int:
        """Return the optimiser steps after a rollout of so many decisions."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class DSRLConfig(OffPolicyConfig):
    """Settings of DSRL (arXiv:2506.15799): SAC over the noise of a frozen flow policy."""

    implementation: ClassVar[str] = "zoo.off_policy.dsrl:DSRL"

    learning_rate: Rate = 3e-4
    """Of SAC's actor, critics and temperature; Stable-Baselines3's."""
    batch_size: Decisions = 256
    """Decisions of one optimiser step; Stable-Baselines3's."""
    gamma: Fraction = 0.99
    """Discount per decision."""
    bound: Positive = 1.0
    """Largest size of each number of noise; the authors' for pi0. Beyond about 2 a policy has hardly been trained."""
    repeat: bool = True
    """Whether all actions of a chunk begin at one noise, as the authors have for pi0."""
    reward: NoiseReward = "step_cost"
    """"step_cost": -1 for each decision and 0 for the one that solves the task, the authors'; "environment": its own.
    """
    updates_per_decision: Positive = 1.0
    """Optimiser steps for each decision."""
    learning_starts: CountOrZero = 200
    """Decisions before the first step."""

    def __post_init__(self) -> None:
        if self.demonstrations:
            raise BadValue("dsrl learns from its own decisions: a demonstration has no noise; leave demonstrations out")

    def updates_of(self, decisions: int) -> int:
        return max(1, round(self.updates_per_decision * decisions))


@dataclass(frozen=True, kw_only=True, slots=True)
class RecapConfig(OffPolicyConfig):
    """Settings of RECAP (arXiv:2511.14759): rounds of collecting and of imitation under an advantage's sign."""

    implementation: ClassVar[str] = "zoo.off_policy.recap:RECAP"

    n_steps: Decisions = 64
    """Decisions of each environment in a round."""
    updates: Count = 300
    """Optimiser steps of the policy in a round."""
    value_updates: Count = 200
    """Optimiser steps of the value network in a round."""
    critic_lr: Annotated[float, Range(above=0, high=1)] = 3e-4
    """Of the value network."""
    label: AdvantageLabel = "value"
    """Decisions that are positive: those of the highest advantages by the value network, or of solved episodes."""
    positive_share: Annotated[float, Range(above=0, high=1)] = 0.4
    """Share of a task's decisions that are positive; demonstrations are. The authors' share in fine-tuning."""
    lookahead: Count = 50
    """Simulator steps of an advantage before it goes on with a value; the authors' number in fine-tuning."""
    indicator: Indicator = "prompt"
    """"prompt": every decision is learned, its sign at the end of the sentence. "filter": positive ones alone."""
    indicator_dropout: Fraction = 0.3
    """Share of the decisions whose sentence has no sign; the authors' share."""
    guidance: Positive = 1.0
    """Weight of the positive sign while acting; above 1 it is exaggerated, at twice the cost."""

    def updates_of(self, decisions: int) -> int:
        return self.updates


@dataclass(frozen=True, kw_only=True, slots=True)
class QCConfig(OffPolicyConfig):
    """Settings of Q-chunking (arXiv:2507.07969): a critic of whole chunks, and the best of N sampled ones."""

    implementation: ClassVar[str] = "zoo.off_policy.qc:QC"

    gamma: Fraction = 0.99
    """Discount per simulator step."""
    critic_lr: Annotated[float, Range(above=0, high=1)] = 3e-4
    """Of the critics."""
    num_critics: Count = 2
    """Critics, whose mean decides; the authors' number."""
    tau: Annotated[float, Range(above=0, high=1)] = 0.005
    """Step of the target critics towards the critics."""
    num_samples: Count = 16
    """N, chunks sampled for each decision, of which the best by the critics is played."""
    updates_per_decision: Positive = 1.0
    """Optimiser steps of the critics for each decision, all ranks' together."""
    learning_starts: CountOrZero = 500
    """Decisions of a rank before the first step."""
    imitate: Imitate = "all"
    """Decisions that the policy learns: all of the replay, those that the critics judge the better half, or none, as a
    frozen policy does."""

    def updates_of(self, decisions: int) -> int:
        return max(1, round(self.updates_per_decision * decisions))


def folders_of(names: Texts | None) -> tuple[Path, ...]:
    """The folders that a user names: none, one or several."""
    given = (names,) if isinstance(names, str) else names or ()
    return tuple(user_path(name) for name in given)


def check_once(folders: Sequence[str], flag: str) -> None:
    """Raise `BadValue` where a folder of demonstrations is named twice."""
    known: set[str] = set()
    for name in folders:
        if (folder := os.path.realpath(user_path(name))) in known:
            raise BadValue(f"{flag} names '{name}' twice; name each folder once")
        known.add(folder)


STEP_VALUES_LACKING = (
    "value_level='action' needs a critic with an output for each step of the chunk, which this policy lacks. "
    "OpenVLA-OFT has one with policy_kwargs backbone_kwargs value_outputs: <chunk>; else set value_level='chunk'"
)
ADAPTER_LACKING = (
    "kl_coef needs a reference policy, but this policy has no LoRA adapter to switch off. Attach one (policy_kwargs "
    "backbone_kwargs lora: {rank: 32}), or set kl_reference='copy', which keeps a second copy of the weights that "
    "train"
)


REMOVED_SETTINGS: Mapping[str, object] = {
    "desired_kl": None,
    "dual_clip": None,
    "bc_batch_size": None,
    "normalize_advantage_per_task": False,
    "start_sampling_uniform": 0.25,
    "start_sampling_memory": 20,
}
"""Setting of earlier versions -> its default, with which the `config.yml` of a run may still name it."""
REMOVED_OF_SFT: Mapping[str, object] = {"weight": "none", "beta": 1.0, "gamma": 0.99}
"""Likewise, of fine-tuning alone."""
AlgorithmConfig = PPOConfig | GRPOConfig | QCConfig | RecapConfig | DSRLConfig
ALGORITHMS: Mapping[str, type[AlgorithmConfig]] = {
    "ppo": PPOConfig,
    "grpo": GRPOConfig,
    "qc": QCConfig,
    "recap": RecapConfig,
    "dsrl": DSRLConfig,
}
"""Algorithm -> its settings."""


def check_algorithm(algo: str) -> str:
    """`algo` if it exists, else `UnknownName`."""
    if algo not in ALGORITHMS:
        raise unknown_name("algorithm", algo, ALGORITHMS)
    return algo


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTConfig:
    """Settings of `vla-zoo sft` beyond those of every run; `RunConfig.algo_kwargs` of its `config.yml`."""

    dataset: Texts = field(metadata=ANYTIME)
    """LeRobotDataset v3.0, e.g. of vla-zoo collect; several are learned together."""
    episodes: Count | None = None
    """Learn the first N episodes of each only; none: all."""
    batch_size: Annotated[int, Range(low=1, high=2**20)] = 64
    """Frames per update, all processes together."""
    micro_batch_size: Annotated[int, Range(low=1, high=2**20)] | None = field(default=None, metadata=ANYTIME)
    """Of these, in the network at a time, gradients summed; none: all."""
    learning_rate: Annotated[float, Range(above=0, below=1)] = 1e-3
    """At the start, then down to 0 in a straight line."""
    max_grad_norm: Positive = 1.0
    """Global norm at which a gradient is cut."""
    augment: bool = False
    """Shift the images at random and change their light and colours. See `zoo.imitation.augmentation`."""
    paraphrases: str | None = field(default=None, metadata=ANYTIME)
    """YAML of taught sentence: [other sentences]; each frame of an update is shown with one, drawn anew."""
    privileged_coef: NonNegative = 0.0
    """Weight of the error of a head that predicts what the expert saw: places of hand, things and goal."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where the datasets are."""
        return folders_of(self.dataset)
