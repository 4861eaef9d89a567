"""A run, resolved: flags over hyperparameter file over defaults. One frozen record, checked once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from vla_gym.errors import BadValue, check_integer, check_known, shown, unknown_name
from vla_gym.observation import LARGEST_IMAGE, SMALLEST_IMAGE
from vla_gym.rewards import RewardKind
from vla_gym.workers.pool import OnWorkerError
from zoo.config.algorithm_configs import (
    ALGORITHMS,
    REMOVED_SETTINGS,
    GRPOConfig,
    PPOConfig,
    SFTConfig,
    check_algorithm,
)
from zoo.config.evaluation_options import EVAL_OPTIONS, evaluated_options, evaluation_protocol
from zoo.config.settings import (
    MOST_PROCESSES,
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Processes,
    Range,
    Seconds,
    annotations_of,
    check_fields,
    check_value,
    defaults_of,
)
from zoo.evaluation.protocol import EvaluationProtocol

LARGEST_SEED = 2**32 - 1
"""The largest that `numpy.random.seed` takes."""


class EnvOptions(TypedDict, total=False):
    """Keyword arguments of `vla_gym.make_vec`, which has their defaults."""

    chunk: Annotated[int, Range(low=1, high=10_000)]
    group_size: Processes
    image_size: Annotated[int, Range(low=SMALLEST_IMAGE, high=LARGEST_IMAGE)]
    wrist_camera: bool
    state: bool
    instructions: Mapping[str, Any]
    reward: RewardKind
    reward_scale: Positive
    split: str
    num_workers: Annotated[int, Range(low=0, high=MOST_PROCESSES)]
    on_worker_error: OnWorkerError
    step_timeout: Seconds
    reset_timeout: Seconds
    env_kwargs: Mapping[str, Any]
    """Options of the benchmark's family; `RunConfig.env_options` holds them beside the others."""


class OptimizerOptions(TypedDict, total=False):
    """Keyword arguments of the optimiser."""

    eps: Positive
    weight_decay: NonNegative
    betas: Annotated[tuple[float, float], Range(low=0, below=1)]


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
    options: Mapping[str, Any]
    """The family's settings of reading it (`backbone_kwargs`), the chunk aside, which is the recipe's."""


class PolicyOptions(TypedDict, total=False):
    """Keyword arguments of `vla_policies.VLAPolicy` that a run may set; the class has their defaults."""

    backbone_kwargs: Mapping[str, Any]
    family: str
    unnorm_key: str
    revision: str
    base: str
    verify: bool
    temperature: Positive
    top_k: CountOrZero
    greedy: Literal["likeliest", "mean"]
    compile: bool
    value_lr: Positive | None
    optimizer_kwargs: OptimizerOptions


ENV_OPTIONS = annotations_of(EnvOptions)
"""Setting of the environment -> its annotation."""
TRAINING_ONLY = ("group_size", "reward", "reward_scale", "on_worker_error")
"""Those that do not apply where nothing is trained by reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides what a run computes (plus where it computes it)."""

    algo: str
    """Key of `zoo.config.algorithm_configs.ALGORITHMS`, or "sft"."""
    env: str
    """Environment id, e.g. "LIBERO-Spatial/3"."""
    policy: str
    """Family name (fresh weights) or checkpoint folder."""
    n_timesteps: Count
    """Simulator steps to train for, all environments together."""
    num_envs: Processes
    """N, simulators side by side."""
    seed: int
    """Seeds weights, sampling and start states."""
    device: str = "auto"
    """Torch device."""
    num_threads: int | None = None
    """Torch CPU threads; None leaves torch's own choice."""
    eval_freq: CountOrZero | None = None
    """Simulator steps between evaluations; 0 evaluates at the end only. None: there, before training and on the
    way as often as `zoo.training.evaluation.evaluations_before_the_end` affords."""
    eval_episodes: CountOrZero = 20
    """Episodes of each evaluation, always on the same start states; 0 evaluates never."""
    eval_tasks: Sequence[str] = field(default_factory=list)
    """Environment ids whose tasks, as far as `env` has them, are evaluated; none stands for all tasks of `env`."""
    save_freq: CountOrZero = 0
    """Simulator steps between checkpoints; 0 saves at the end only."""
    eval_options: Mapping[str, Any] = field(default_factory=dict)
    """`EvalOptions`: how evaluations differ from training."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """`EnvOptions`, those of `env_kwargs` among them."""
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`PolicyOptions`."""
    algo_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Those settings of the algorithm that were given; schedules are mappings."""
    entry: str = ""
    """The hyperparameter entry that the numbers started from."""
    pipeline_stages: int | str = "auto"
    """Parts of a rank's environments, one of which simulates while the policy decides for another; or "auto"."""
    placement: str = "all"
    """The ranks that simulate, decide and learn; see `zoo.distributed.placement`."""
    offload_idle: bool = False
    """Move the optimiser's state to main memory while the policy decides."""
    max_staleness: int = 0
    """Updates by which the weights that collect a rollout may be behind; 0 waits for each."""

    @property
    def algorithm(self) -> PPOConfig | GRPOConfig:
        """All settings of the algorithm, defaults included; raises like `check_settings` for others."""
        cls = ALGORITHMS[self.algo]
        return cls(**check_fields(annotations_of(cls), self.algo_kwargs, "algo_kwargs"))

    @property
    def family(self) -> str:
        """Policy family, which a recipe names beside its start weights; otherwise the policy as it was given."""
        return str(self.policy_kwargs.get("family", self.policy))

    @property
    def backbone_kwargs(self) -> Mapping[str, Any]:
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
    def eval_env_options(self) -> dict[str, Any]:
        """As `env_options`, of evaluations."""
        return evaluated_options(self.eval_options, self.env_options)

    @property
    def chunk(self) -> int:
        """K, simulator steps per decision at most."""
        return int(self.env_options.get("chunk", 1))

    @property
    def group_size(self) -> int:
        """G, adjacent environments that share their start states."""
        return int(self.env_options.get("group_size", 1))


_RUN_SETTINGS = ("n_timesteps", "num_envs", "eval_freq", "eval_episodes", "save_freq")
"""Fields of `RunConfig` that are settings of the same name."""
PER_PROCESS = "num_envs_per_process"
"""Setting in the place of `num_envs`: environments of each process that collects."""


_SFT_SINCE_FIRST_VERSION = frozenset({"paraphrases", "weight", "beta", "gamma", "privileged_coef"})
"""Fields of `SFTConfig` that runs of 0.1 do not have; their defaults are what those runs did."""


def sft_config(config: RunConfig) -> SFTConfig:
    """Return the settings of a fine-tuning run; raises `BadValue` where its `config.yml` has others."""
    known = annotations_of(SFTConfig)
    if config.algo_kwargs.keys() | _SFT_SINCE_FIRST_VERSION != known.keys():
        raise BadValue(
            f"algo_kwargs of a fine-tuning run must be {', '.join(sorted(known))}; config.yml has "
            f"{', '.join(sorted(config.algo_kwargs)) or 'none'}"
        )
    return SFTConfig(**config.algo_kwargs)


def known_settings(algo: str) -> dict[str, Any]:
    """Return setting of a run with `algo` -> its annotation."""
    run = {name: annotations_of(RunConfig)[name] for name in _RUN_SETTINGS}
    return {
        **run,
        PER_PROCESS: Processes,
        **EVAL_OPTIONS,
        "policy": StartWeights,
        "policy_kwargs": PolicyOptions,
        **ENV_OPTIONS,
        **annotations_of(ALGORITHMS[algo]),
    }


def check_settings(algo: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values with each number of the right kind; `where` starts the error message.

    Raises `UnknownName` for a setting that does not exist and `BadValue` for a value of another kind.
    """
    checked = check_fields(known_settings(algo), values, where)
    families = {name: checked[name] for name in ("env_kwargs", "eval_env_kwargs") if name in checked}
    return checked | {name: _checked_options(options, f"{where}: {name}") for name, options in families.items()}


def _checked_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check those `EnvOptions` that stand among a family's options, which the family itself checks."""
    known = {name: value for name, value in options.items() if name in ENV_OPTIONS}
    return {**options, **check_fields(ENV_OPTIONS, known, where)}


def without_counts(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's `values`, without its number of environments where `given` settings have one in its place.

    Nor its `n_steps` where they say `rounds_per_update`.
    """
    counts = {"num_envs", PER_PROCESS}
    replaced = counts if counts & given.keys() else set()
    if given.get("rounds_per_update") is not None:
        replaced = {*replaced, "n_steps"}
    return {name: value for name, value in values.items() if name not in replaced}


def build_config(
    *, algo: str, env: str, policy: str, values: Mapping[str, Any], num_collectors: int = 1, **others: Any
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
    config = RunConfig(
        algo=check_algorithm(algo),
        env=env,
        policy=policy,
        eval_options={name: values[name] for name in EVAL_OPTIONS if name in values},
        env_options=env_options(values),
        algo_kwargs={name: values[name] for name in annotations_of(ALGORITHMS[algo]) if name in values},
        **{"save_freq": max(1, values["n_timesteps"] // 4), **run, **others},
    )
    check_arithmetic(config)
    return config


def env_options(values: Mapping[str, Any], *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the keyword arguments of `vla_gym.make_vec` among a run's settings, but for those of some names."""
    names = [name for name in ENV_OPTIONS if name not in ("env_kwargs", *without)]
    return {name: values[name] for name in names if name in values} | values.get("env_kwargs", {})


def check_arithmetic(config: RunConfig) -> None:
    """Raise `BadValue` for counts that are too small or do not divide, naming the nearest that does."""
    for name in _RUN_SETTINGS:
        check_value(annotations_of(RunConfig)[name], getattr(config, name), name)
    check_integer("seed", config.seed, 0, LARGEST_SEED)
    check_fields(EVAL_OPTIONS, config.eval_options, "eval_options")
    _ = config.evaluation  # raises for settings that contradict each other
    if config.algo_kwargs.get("rounds_per_update") is not None and "n_steps" in config.algo_kwargs:
        raise BadValue(
            "rounds_per_update and n_steps are two ways to say when a rollout ends, got both; for n_steps decisions "
            "with automatic resets set rounds_per_update:null"
        )
    _check_normalisation(config)
    if config.algo in ALGORITHMS:
        _ = config.algorithm
    group = config.group_size
    if config.algo == "grpo" and group < 2:
        raise BadValue(
            f"GRPO compares the members of a group, got group_size={group}; give at least 2, e.g. group_size:8"
        )
    if config.num_envs % group:
        near = max(group, round(config.num_envs / group) * group)
        raise BadValue(
            f"num_envs={config.num_envs} is not a multiple of group_size={group}: every group needs all its "
            f"environments. Nearest allowed: --num-envs {near}"
        )


def _check_normalisation(config: RunConfig) -> None:
    """PPO normalises advantages over a rollout, which takes two decisions."""
    settings = {**defaults_of(PPOConfig), **config.algo_kwargs}
    if config.algo != "ppo" or not settings["normalize_advantage"]:
        return
    for name, count in (
        ("batch_size", settings["batch_size"]),
        ("n_steps x num_envs", config.num_envs * settings["n_steps"]),
    ):
        if count < 2:
            raise BadValue(f"{name} must be at least 2 to normalise advantages, got {count}")


def benchmark_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `env_options` that `vla_gym.find_benchmark` takes: `split` and the family's own options."""
    return {name: value for name, value in options.items() if name not in ENV_OPTIONS or name == "split"}


def to_plain(config: RunConfig) -> dict[str, Any]:
    """Return a dict of plain values, for `config.yml`."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_plain(values: Mapping[str, Any], where: str) -> RunConfig:
    """Inverse of `to_plain`; raises `UnknownName` or `BadValue` for anything else."""
    known = annotations_of(RunConfig)
    for name in values:
        if name not in known:
            raise unknown_name(f"setting in {where}", str(name), known, show=20)
    if lacking := [name for name in known if name not in values and name not in _SINCE_FIRST_VERSION]:
        raise BadValue(f"{where} lacks {', '.join(lacking)}, which every run writes")
    config = RunConfig(**_checked_fields(values, where))
    try:
        check_arithmetic(config)
    except BadValue as error:
        raise BadValue(f"{where}: {error}") from error
    return config


_SINCE_FIRST_VERSION: tuple[str, ...] = ("eval_tasks", "eval_options")
"""Fields that runs of 0.1 do not have; their defaults are what those runs did."""
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?", re.ASCII)
"""Names of torch devices that runs know."""
_ENV_ID = re.compile(r"[A-Za-z0-9][\w-]*(/[A-Za-z0-9][\w-]*){0,2}")


def _checked_fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a `config.yml`, each checked as the same setting is in `-params`."""
    algo, env, device = values["algo"], values["env"], values["device"]
    check_known(f"algorithm ({where}: algo)", algo, (*ALGORITHMS, "sft"))
    if not isinstance(env, str) or not _ENV_ID.fullmatch(env):
        raise BadValue(f"{where}: env must be an environment id such as LIBERO-Spatial/3, got {shown(env)}")
    if not isinstance(device, str) or not DEVICE.fullmatch(device):
        raise BadValue(f"{where}: device must be one of auto, cpu, cuda, cuda:<index>, got {shown(device)}")
    stages = values["pipeline_stages"]
    if stages != "auto":
        check_value(Processes, stages, f"{where}: pipeline_stages")
    others = {name: value for name, value in values.items() if name != "pipeline_stages"}
    checked = check_fields(annotations_of(RunConfig), others, where)
    known = annotations_of(SFTConfig if algo == "sft" else ALGORITHMS[algo])
    given = {
        name: value
        for name, value in checked["algo_kwargs"].items()
        if name not in REMOVED_SETTINGS or value != REMOVED_SETTINGS[name]
    }
    return {
        **checked,
        "pipeline_stages": stages,
        "env_options": _checked_options(checked["env_options"], f"{where}: env_options"),
        "policy_kwargs": check_value(PolicyOptions, values["policy_kwargs"], f"{where}: policy_kwargs"),
        "algo_kwargs": check_fields(known, given, f"{where}: algo_kwargs"),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
