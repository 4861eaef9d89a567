"""An agent, a policy in its environment with everything that decides how it acts: opened here, and played."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gymnasium import spaces

from vla_gym.make import make_vec
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark, StartState
from vla_gym.system.extras import check_installed
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies.resolver import PolicyRef
from zoo.agents.recipe import can_sample
from zoo.config.evaluation import EvaluationProtocol
from zoo.config.run_config import benchmark_options, env_conventions, observation_layout
from zoo.config.settings import Options, Settings
from zoo.evaluation.evaluator import EpisodeRecord, Frame, Predictor, episodes_of, evaluate
from zoo.runs.evaluations import policy_line, policy_record
from zoo.runs.folder import RunFolder, folder_name
from zoo.runs.lookup import is_shipped

if TYPE_CHECKING:  # they bring torch
    import torch

    from vla_policies.policy import VLAPolicy

_HOW_TO_OPEN = ("temperature", "top_k", "greedy", "compile", "cuda_graphs")
"""Of `policy_kwargs`, what `PolicyRef` does not say."""


class ServedPolicy(Predictor, Protocol):
    """A policy that a server has, which acts as a `VLAPolicy` does; `zoo.serving.client.RemotePolicy`."""

    name: str
    """Address of the server."""
    weights_sha256: str | None
    """SHA-256 of its weights, where the server tells it."""
    read_as: Options
    """How its server reads it, `zoo.runs.evaluations.policy_record`; {} where the server does not tell."""

    def to_json(self) -> Settings:
        """Return what the server says of the policy, as JSON values."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A policy and its environment, checked; no weights are read and no simulator runs."""

    env: str
    """Environment id."""
    policy: PolicyRef | ServedPolicy
    """The policy, opened here or where it is served."""
    policy_kwargs: Options
    """Settings of the policy, as they are recorded."""
    protocol: EvaluationProtocol
    """How it acts, and how often."""
    env_options: Options
    """Keyword arguments of `make_vec`, those of training left out."""
    num_envs: int
    """N, environments side by side."""
    start_states: tuple[StartState, ...]
    """Start states of its episodes, task-major."""
    output_folder: Path | None
    """Run folder the policy comes from, if it comes from one here; results belong there."""
    departures: tuple[str, ...] = ()
    """Differences from the run's own protocol and policy, as words for a file name; empty without a run."""
    device: str
    """Name of the policy's torch device."""
    num_threads: int | None
    """Torch CPU threads; None leaves torch's own choice."""
    seed: int
    """Seed of sampled actions."""

    @property
    def served(self) -> ServedPolicy | None:
        """The policy where a server has it; None where it is opened here."""
        return None if isinstance(self.policy, PolicyRef) else self.policy

    @property
    def can_sample(self) -> bool:
        """Whether its actions can be sampled."""
        return not isinstance(self.policy, PolicyRef) or can_sample(self.policy)

    @property
    def benchmark(self) -> Benchmark:
        """The environment's tasks and conventions."""
        return find_benchmark(self.env, **benchmark_options(self.env_options))

    def fetched(self) -> Agent:
        """Return the agent with its policy here, read for its environment; downloads a Hub id that is not."""
        if not isinstance(self.policy, PolicyRef) or self.policy.fresh:
            return self
        benchmark = self.benchmark
        policy = self.policy.fetched().fitted(env_conventions(benchmark, self.env_options), benchmark.suite)
        return replace(self, policy=policy)

    @property
    def read_as(self) -> Settings:
        """How the policy is read, and of which weights it is; see `policy_record`."""
        if not isinstance(self.policy, PolicyRef):
            return {**self.policy.read_as}
        return policy_record(self.policy, env_conventions(self.benchmark, self.env_options), self.benchmark)

    @property
    def episodes(self) -> tuple[StartState, ...]:
        """The start state of each episode, in the order they are played."""
        return tuple(start for start, _ in episodes_of(self.start_states, self.protocol.rounds))

    def named(self, stem: str) -> str:
        """Return `stem` and the departures: the name of a file in the run folder, without its suffix."""
        return "_".join([stem, *self.departures])

    def video_file(self, stem: str, *, elsewhere: str) -> Path:
        """Return the mp4 in the run folder; without one, `<elsewhere>-<policy>-<environment>.mp4` here."""
        if self.output_folder is not None:
            return RunFolder(self.output_folder).videos / f"{self.named(stem)}.mp4"
        policy = Path(self.policy.name)
        name = policy.parent.name if is_shipped(policy) else policy.name.replace(":", "-")
        return Path(f"{elsewhere}-{name}-{folder_name(self.env)}.mp4")


def open_agent(
    agent: Agent, *, every_step: bool = False, privileged: bool = False, every_camera: bool = False
) -> tuple[Any, VLAVectorEnv]:
    """Load the policy, or connect with its server, then start the simulators; the caller closes the environment.

    A policy that cannot act as planned raises before any simulator starts. With `every_step` the environment is
    stepped by single actions, whatever the policy's chunk; with `privileged` it shows what experts read, too; with
    `every_camera` the wrist camera, too, where there is one.
    """
    import torch

    from zoo.distributed.process_group import use_device

    agent = agent.fetched()
    sys.stdout.write(policy_line(agent.read_as) + "\n")
    torch.manual_seed(agent.seed)
    if agent.num_threads is not None:
        torch.set_num_threads(agent.num_threads)
    device = use_device(agent.device)
    policy: Any = agent.policy
    if isinstance(agent.policy, PolicyRef):
        check_installed(agent.benchmark)
        policy = load_policy(agent.policy, agent.policy_kwargs, device, agent.env, agent.env_options)
    options = {**agent.env_options, **({"chunk": 1} if every_step else {}), "privileged": privileged}
    if every_camera and "wrist_image" in agent.benchmark.cameras:
        options["wrist_camera"] = True
    return policy, make_vec(agent.env, agent.num_envs, autoreset_mode="disabled", **options)


def load_policy(
    ref: PolicyRef,
    policy_kwargs: Options,
    device: torch.device | str,
    env: str | None = None,
    env_options: Options | None = None,
) -> VLAPolicy:
    """Return a policy that only acts, fitted to an environment, which is not started, where one is given."""
    from vla_policies.policy import VLAPolicy

    kwargs: Settings = {name: value for name, value in policy_kwargs.items() if name in _HOW_TO_OPEN}
    if env is not None:
        options = env_options or {}
        benchmark = find_benchmark(env, **benchmark_options(options))
        ref = ref.reading(suite=benchmark.suite, action_spec=benchmark.action_spec)
        kwargs["observation_space"] = observation_layout(benchmark, options).bytes_space()
        kwargs["action_space"] = spaces.Box(-1.0, 1.0, (options.get("chunk", 1), benchmark.action_dim))
    policy = VLAPolicy.from_pretrained(ref, device=device, **kwargs)
    policy.set_training_mode(False)
    return policy


def play(
    agent: Agent,
    policy: Predictor,
    envs: VLAVectorEnv,
    *,
    on_frame: Callable[[Frame], None] | None = None,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
) -> list[EpisodeRecord]:
    """Play the agent's episodes with the policy and the environment that `open_agent` returned."""
    return evaluate(
        policy,
        envs,
        agent.start_states,
        deterministic=not agent.protocol.sample,
        rounds=agent.protocol.rounds,
        seed=agent.seed,
        on_frame=on_frame,
        on_episode=on_episode,
    )
