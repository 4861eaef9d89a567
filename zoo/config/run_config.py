"""A run, resolved: flags over hyperparameter file over defaults. One frozen record, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from vla_gym.errors import BadValue, check_known
from vla_gym.observation import LARGEST_IMAGE, SMALLEST_IMAGE, ObservationLayout
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark, RewardKind
from vla_gym.vector.protocol import with_instructions
from vla_gym.workers.pool import OnWorkerError
from vla_policies.conventions import Conventions
from zoo.config.algorithm_configs import (
    ALGORITHMS,
    REMOVED_OF_SFT,
    REMOVED_SETTINGS,
    AlgorithmConfig,
    GRPOConfig,
    PPOConfig,
    SFTConfig,
    check_algorithm,
)
from zoo.config.evaluation import EVAL_OPTIONS, EvaluationProtocol, carried_options, evaluation_protocol
from zoo.config.settings import (
    ANYTIME,
    MOST_PROCESSES,
    Count,
    CountOrZero,
    Device,
    EnvId,
    NonNegative,
    Options,
    Parts,
    Positive,
    Processes,
    Range,
    Seconds,
    Seed,
    Settings,
    Threads,
    annotations_of,
    check_fields,
    check_value,
)


class EnvOptions(TypedDict, total=False):
    """Keyword arguments of `vla_gym.make_vec`, which has their defaults."""

    chunk: Annotated[int, Range(low=1, high=10_000)]
    """K, simulator steps of one decision, at most."""
    group_size: Processes
    """G, adjacent environments that share their start states."""
    image_size: Annotated[int, Range(low=SMALLEST_IMAGE, high=LARGEST_IMAGE)]
    """Side of the square images, pixels."""
    wrist_camera: bool
    """Whether observations have the wrist camera's image."""
    state: bool
    """Whether observations have the robot's state."""
    instructions: Options
    """Task name -> other words for it."""
    reward: RewardKind
    """How the simulator's reward becomes the step's."""
    reward_scale: Positive
    """Factor of the reward."""
    split: str
    """Start states of another split, e.g. test."""
    num_workers: Annotated[int, Range(low=0, high=MOST_PROCESSES)]
    """Processes that simulate; 0: in this one."""
    on_worker_error: OnWorkerError
    """Consequence of a simulator that dies, hangs or raises."""
    step_timeout: Seconds
    """Seconds that a step may take."""
    reset_timeout: Seconds
    """Seconds that a reset may take."""
    env_kwargs: Options
    """Options of the benchmark's family; `RunConfig.env_options` holds them beside the others."""


class OptimizerOptions(TypedDict, total=False):
    """Keyword arguments of the optimiser, AdamW's but the last."""

    eps: Positive
    """Added to the denominator."""
    weight_decay: NonNegative
    """Decoupled decay of the weights."""
    betas: Annotated[tuple[float, float], Range(low=0, below=1)]
    """Decay of the running means of gradient and squared gradient."""
    muon: bool
    """Whether the weights of linear layers step by Muon (`torch.optim.Muon`), at the same learning rate."""


class StartWeights(TypedDict, total=False):
    """The checkpoint that a recipe starts from under its family's bare name, and how it is read.

    `unnorm_key` and `options` also hold for another published checkpoint with statistics of that data set.
    """

    checkpoint: str
    """Hub id, or a folder in its place; of an adapter, where it comes with its model."""
    revision: str
    """Commit, tag or branch of the Hub id."""
    base: str
    """Hub id or folder of the model that `checkpoint`, an adapter, belongs to."""
    unnorm_key: str
    """Data set of its action statistics."""
    options: Options
    """The family's settings of reading it (`backbone_kwargs`), the chunk aside, which is the recipe's."""


class PolicyOptions(TypedDict, total=False):
    """Keyword arguments of `vla_policies.VLAPolicy` that a run may set; the class has their defaults."""

    backbone_kwargs: Options
    """Settings of the family's network."""
    family: str
    """Family of a checkpoint that does not say it."""
    unnorm_key: str
    """Data set whose action statistics a published checkpoint is to use."""
    revision: str
    """Commit, tag or branch of a Hub id."""
    base: str
    """Model that an adapter belongs to, in place of the one it names."""
    verify: bool
    """Whether the checkpoint's hashes are compared."""
    temperature: Positive
    """Sample action tokens at this temperature."""
    top_k: CountOrZero
    """Sample among the K likeliest tokens only; 0: all."""
    greedy: Literal["likeliest", "mean"]
    """Deterministic action token: the likeliest, or the one nearest the mean."""
    compile: bool
    """Whether the network is compiled with torch.compile."""
    cuda_graphs: bool
    """Whether a GPU's decisions are launched as CUDA graphs."""
    value_lr: Positive | None
    """The critic's learning rate; null: the policy's."""
    optimizer_kwargs: OptimizerOptions
    """Keyword arguments of the optimiser."""


ENV_OPTIONS = annotations_of(EnvOptions)
"""Setting of the environment -> its annotation."""
TRAINING_ONLY = ("group_size", "reward", "reward_scale", "on_worker_error")
"""Settings that do not apply where nothing is trained by reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides what a run computes (plus where it computes it)."""

    algo: str
    """ppo, grpo, qc, recap, dsrl, or sft."""
    env: EnvId
    """Environment id, e.g. Toy-Reach, LIBERO-Spatial, LIBERO-Spatial/3."""
    policy: str
    """Family (fresh weights, or those of its recipe), checkpoint or run folder, or Hub id."""
    n_timesteps: Count = field(metadata=ANYTIME)
    """Simulator steps to train for, all environments together."""
    num_envs: Processes
    """Simulators side by side, of all processes together."""
    seed: Seed
    """Seed of weights, sampling and start states."""
    device: Device = field(default="auto", metadata=ANYTIME)
    """Torch device: auto, cpu, cuda, cuda:1."""
    num_threads: Threads | None = field(default=None, metadata=ANYTIME)
    """Torch CPU threads; none: torch's choice."""
    eval_freq: CountOrZero | None = field(default=None, metadata=ANYTIME)
    """Simulator steps between evaluations; 0: at the end only; none: there, before training and on the way, within a
    tenth of the run. See `zoo.training.evaluation.evaluations_before_the_end`."""
    eval_episodes: CountOrZero = 20
    """Episodes of each evaluation, always on the same start states; 0: none."""
    eval_tasks: Sequence[str] = field(default_factory=list)
    """Evaluate on those tasks of the environment that these environments have, e.g. LIBERO-Object LIBERO-Goal; none:
    all."""
    save_freq: CountOrZero = field(default=0, metadata=ANYTIME)
    """Simulator steps between checkpoints; 0: at the end only."""
    eval_options: Options = field(default_factory=dict)
    """`EvalOptions`: how evaluations differ from training."""
    env_options: Options = field(default_factory=dict)
    """`EnvOptions`, those of `env_kwargs` among them."""
    policy_kwargs: Options = field(default_factory=dict)
    """`PolicyOptions`."""
    algo_kwargs: Options = field(default_factory=dict)
    """Settings of the algorithm that were given; schedules are mappings."""
    entry: str = ""
    """The hyperparameter entry that the numbers started from."""
    pipeline_stages: Processes | Literal["auto"] = field(default="auto", metadata=ANYTIME)
    """Simulate one part of a process's environments while deciding for another; their number, or auto: 2 where the
    policy is on a GPU."""
    placement: str = field(default="all", metadata=ANYTIME)
    """Processes that simulate, that decide and that learn, e.g. env=0-1,rollout=2,actor=3."""
    offload_idle: bool = field(default=False, metadata=ANYTIME)
    """Keep the optimiser's state in main memory while the policy decides."""
    max_staleness: CountOrZero = field(default=0, metadata=ANYTIME)
    """Updates by which the weights that collect a rollout may be behind, where other processes learn."""
    rank_timeout: Count = field(default=30, metadata=ANYTIME)
    """Minutes that processes wait for each other before the run ends; more than a rollout where others collect."""
    env_wrapper: Parts = field(default_factory=list)
    """Vector wrappers around training's environments, innermost first, e.g. my_rewards.Closer."""
    callback: Parts = field(default_factory=list)
    """Stable-Baselines3 callbacks of training, e.g. my_callbacks.StopEarly."""

    def __post_init__(self) -> None:
        """Raise `BadValue` for counts out of range, that do not divide, or that contradict each other."""
        for name in (*_RUN_SETTINGS, "seed"):
            check_value(annotations_of(RunConfig)[name], getattr(self, name), name)
        check_fields(EVAL_OPTIONS, self.eval_options, "eval_options")
        _ = self.evaluation
        if self.algo not in ALGORITHMS:
            return
        settings = self.algorithm
        if isinstance(settings, PPOConfig):
            if settings.rounds_per_update is not None and "n_steps" in self.algo_kwargs:
                raise BadValue(
                    "rounds_per_update and n_steps are two ways to say when a rollout ends, got both; for n_steps "
                    "decisions with automatic resets set rounds_per_update:null"
                )
            if settings.normalize_advantage and min(settings.batch_size, self.num_envs * settings.n_steps) < 2:
                raise BadValue(
                    "normalize_advantage needs at least 2 decisions, got "
                    f"batch_size={settings.batch_size}, n_steps x num_envs = {self.num_envs * settings.n_steps}"
                )
        elif isinstance(settings, GRPOConfig) and self.group_size < 2:
            raise BadValue(f"GRPO compares episodes of a group: group_size must be at least 2, got {self.group_size}")

    @property
    def algorithm(self) -> AlgorithmConfig:
        """All settings of the algorithm, defaults included; raises like `check_settings` for others."""
        cls = ALGORITHMS[self.algo]
        return cls(**check_fields(annotations_of(cls), self.algo_kwargs, "algo_kwargs"))

    @property
    def family(self) -> str:
        """Policy family, which a recipe names beside its start weights; otherwise the policy as it was given."""
        return str(self.policy_kwargs.get("family", self.policy))

    @property
    def backbone_kwargs(self) -> Options:
        """Settings of the policy's network, `policy_kwargs: {backbone_kwargs: ...}`."""
        return self.policy_kwargs.get("backbone_kwargs") or {}

    @property
    def evaluation(self) -> EvaluationProtocol:
        """How success is measured during training."""
        return evaluation_protocol(self.eval_options, self.env_options, self.eval_episodes)

    @property
    def eval_env(self) -> str:
        """Environment id of evaluations."""
        return str(self.eval_options.get("eval_env", self.env))

    @property
    def eval_env_options(self) -> Settings:
        """As `env_options`, of evaluations."""
        other = "eval_env" in self.eval_options
        kept = carried_options(self.eval_env, self.env_options) if other else self.env_options
        split = {"split": self.eval_options["eval_split"]} if "eval_split" in self.eval_options else {}
        return {**kept, **split, **self.eval_options.get("eval_env_kwargs", {})}

    @property
    def benchmark(self) -> Benchmark:
        """The environment's description, with the run's options."""
        return find_benchmark(self.env, **benchmark_options(self.env_options))

    @property
    def evaluated_benchmark(self) -> Benchmark:
        """The description of the environment of evaluations, with their options and instructions."""
        options = self.eval_env_options
        benchmark = find_benchmark(self.eval_env, **benchmark_options(options))
        return with_instructions(benchmark, options.get("instructions", {}))

    @property
    def observation_layout(self) -> ObservationLayout:
        """The shape of one observation."""
        return observation_layout(self.benchmark, self.env_options)

    @property
    def chunk(self) -> int:
        """K, simulator steps per decision at most."""
        return int(self.env_options.get("chunk", 1))

    @property
    def group_size(self) -> int:
        """G, adjacent environments that share their start states."""
        return int(self.env_options.get("group_size", 1))


_RUN_SETTINGS = ("n_timesteps", "num_envs", "eval_freq", "eval_episodes", "save_freq", "env_wrapper", "callback")
"""Fields of `RunConfig` that are settings of the same name."""
PER_PROCESS = "num_envs_per_process"
"""Setting in the place of `num_envs`: environments of each process that collects."""


def sft_config(config: RunConfig) -> SFTConfig:
    """Return the settings of a fine-tuning run; raises `BadValue` where its `config.yml` lacks its dataset."""
    if "dataset" not in config.algo_kwargs:
        raise BadValue("algo_kwargs of a fine-tuning run lack 'dataset', the folder of its demonstrations")
    return SFTConfig(**config.algo_kwargs)


def known_settings(algo: str) -> Settings:
    """Return setting of a run with `algo` -> its annotation."""
    return {
        **{name: annotations_of(RunConfig)[name] for name in _RUN_SETTINGS},
        PER_PROCESS: Processes,
        **EVAL_OPTIONS,
        "policy": StartWeights,
        "policy_kwargs": PolicyOptions,
        **ENV_OPTIONS,
        **annotations_of(ALGORITHMS[algo]),
    }


def check_settings(algo: str, values: Mapping[str, object], where: str) -> Settings:
    """Return the values with each number of the right kind; `where` starts the error message.

    Raises `UnknownName` for a setting that does not exist and `BadValue` for a value of another kind.
    """
    return with_checked_families(check_fields(known_settings(algo), values, where), where)


def with_checked_families(values: Settings, where: str) -> Settings:
    """Return settings with those `EnvOptions` checked that stand among a family's options, which that itself checks."""
    families = {name: values[name] for name in ("env_kwargs", "eval_env_kwargs") if name in values}
    return values | {name: _checked_options(options, f"{where}: {name}") for name, options in families.items()}


def _checked_options(options: Mapping[str, object], where: str) -> Settings:
    known = {name: value for name, value in options.items() if name in ENV_OPTIONS}
    return {**options, **check_fields(ENV_OPTIONS, known, where)}


def without_counts(values: Mapping[str, object], given: Mapping[str, object]) -> Settings:
    """Return a recipe's `values`, without its number of environments where `given` settings have one in its place.

    Nor its `n_steps` where they say `rounds_per_update`.
    """
    counts = {"num_envs", PER_PROCESS}
    replaced = {*(counts if counts & given.keys() else ()), *(["n_steps"] if given.get("rounds_per_update") else ())}
    return {name: value for name, value in values.items() if name not in replaced}


def build_config(
    *, algo: str, env: str, policy: str, values: Options, num_collectors: int = 1, **others: Any
) -> RunConfig:
    """Sort checked settings (`check_settings`) into a `RunConfig`, of which `others` are further fields.

    `num_collectors`: processes that collect, each with `num_envs_per_process` environments where the values say so.
    Raises `BadValue` when a required setting is missing or numbers do not fit each other.
    """
    if PER_PROCESS in values:
        if "num_envs" in values:
            raise BadValue(f"num_envs counts the environments of all processes, {PER_PROCESS} those of one; got both")
        values = {**values, "num_envs": num_collectors * values[PER_PROCESS]}
    for name in ("n_timesteps", "num_envs"):
        if name not in values:
            raise BadValue(f"setting '{name}' is missing: give it in the hyperparameter entry or on the command line")
    run = {name: values[name] for name in (*_RUN_SETTINGS, "policy_kwargs") if name in values}
    return RunConfig(
        algo=check_algorithm(algo),
        env=env,
        policy=policy,
        eval_options={name: values[name] for name in EVAL_OPTIONS if name in values},
        env_options=env_options(values),
        algo_kwargs={name: values[name] for name in annotations_of(ALGORITHMS[algo]) if name in values},
        **{"save_freq": max(1, values["n_timesteps"] // 4), **run, **others},
    )


def env_options(values: Options, *, without: Collection[str] = ()) -> Settings:
    """Return the keyword arguments of `vla_gym.make_vec` among a run's settings, but for those of some names."""
    names = [name for name in ENV_OPTIONS if name not in ("env_kwargs", *without)]
    return {name: values[name] for name in names if name in values} | values.get("env_kwargs", {})


def observation_layout(benchmark: Benchmark, options: Options) -> ObservationLayout:
    """Return the shape of one observation of an environment with these `env_options`."""
    return ObservationLayout(
        cameras=tuple(name for name in benchmark.cameras if options.get("wrist_camera") or name != "wrist_image"),
        image_size=options.get("image_size") or benchmark.default_image_size,
        state_dim=benchmark.state_dim if options.get("state", True) else 0,
    )


def env_conventions(benchmark: Benchmark, options: Options) -> Conventions:
    """Return observations and actions of an environment with these `env_options`."""
    layout = observation_layout(benchmark, options)
    return Conventions(
        cameras=layout.cameras,
        image_size=layout.image_size,
        state_dim=layout.state_dim,
        chunk=int(options.get("chunk", 1)),
        action_dim=benchmark.action_dim,
        action_spec=benchmark.action_spec,
    )


def benchmark_options(options: Mapping[str, object]) -> Settings:
    """Return the part of `env_options` that `vla_gym.find_benchmark` takes: `split` and the family's own options."""
    return {name: value for name, value in options.items() if name not in ENV_OPTIONS or name == "split"}


def to_plain(config: RunConfig) -> Settings:
    """Return a dict of plain values, for `config.yml`."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_plain(values: Mapping[str, object], where: str) -> RunConfig:
    """Inverse of `to_plain`; raises `UnknownName` or `BadValue` for anything else."""
    known = annotations_of(RunConfig)
    if lacking := [name for name in known if name not in values and name not in _SINCE_FIRST_VERSION]:
        raise BadValue(f"{where} lacks {', '.join(lacking)}, which every run writes")
    checked = check_fields(known, values, where)
    algo = checked["algo"]
    check_known(f"algorithm ({where}: algo)", algo, (*ALGORITHMS, "sft"))
    removed = REMOVED_OF_SFT if algo == "sft" else REMOVED_SETTINGS
    given = {
        name: value for name, value in checked["algo_kwargs"].items() if name not in removed or value != removed[name]
    }
    settings = annotations_of(SFTConfig if algo == "sft" else ALGORITHMS[algo])
    checked |= {
        "env_options": _checked_options(checked["env_options"], f"{where}: env_options"),
        "policy_kwargs": check_value(PolicyOptions, values["policy_kwargs"], f"{where}: policy_kwargs"),
        "algo_kwargs": check_fields(settings, given, f"{where}: algo_kwargs"),
    }
    try:
        return RunConfig(**checked)
    except BadValue as error:
        raise BadValue(f"{where}: {error}") from error


_SINCE_FIRST_VERSION: tuple[str, ...] = ("eval_tasks", "eval_options", "rank_timeout", "env_wrapper", "callback")
"""Fields that runs of 0.1 do not have; their defaults are what those runs did."""


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
