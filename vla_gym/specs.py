"""Benchmarks, tasks, start states and action conventions as plain records, without a simulator.

Shape letters used in every file of this project: N envs, T decisions, K chunk steps,
A action dims, V action bins, S state dims, G group size, P start states, H and W image size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RenderQuality = Literal["full", "fast"]
"""Images as published, or cheaper ones of the same view for training: results with them are not comparable."""
Physics = Literal["exact", "fast"]
"""Upstream's numbers, bit for bit, or the same within rounding for less work."""

LONGEST_WAIT = 1e6
"""Seconds, eleven days: the most that a time limit may be."""
RewardKind = Literal["sparse", "differenced", "step_penalty"]


@dataclass(frozen=True, kw_only=True)
class RewardRule:
    """Turns the benchmark's reward `r_t` of a step into the agent's; `c` is `scale`."""

    kind: RewardKind = "sparse"
    """`sparse`: `c r_t`. `differenced`: `c (r_t - r_{t-1})` with `r_{-1} = 0`, so that staying solved pays once.
    `step_penalty`: `c r_t - 1`."""
    scale: float = 1.0
    """`c`."""


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """Convention of an arm action and of the image it belongs to; environments and policies each declare one."""

    rotation: Literal["axis_angle", "euler_xyz", "none"]
    """Encoding of dims 3-5; "none" when the action has no rotation dims."""
    gripper: Literal["plus_one_opens", "plus_one_closes", "none"]
    """Sign convention of the last dim as the environment takes it (always in [-1, 1])."""
    frame: Literal["delta", "delta_target", "absolute"]
    """Relative to the measured pose, relative to the previous target, or absolute."""
    units: Literal["scaled", "physical"] = "scaled"
    """[-1, 1] stands for the controller's range, or the numbers are metres and radians."""
    image: Literal["upright", "mirrored"] = "upright"
    """The scene as it is, or with left and right exchanged."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a benchmark: one sentence, one scene, `num_trials` start states."""

    name: str
    """Unique inside the benchmark."""
    instruction: str
    """Sentence that the policy gets. Never empty."""
    horizon: int
    """Policy steps after which the episode is truncated (settle steps are extra)."""
    num_trials: int
    """Start states 0 .. num_trials-1."""
    suite: str
    """Suite the task belongs to, e.g. "libero_spatial"; results are also averaged per suite."""


@dataclass(frozen=True, kw_only=True)
class StartState:
    """Where an episode begins: an entry of a benchmark's table."""

    task_id: int
    """Index into `Benchmark.tasks`."""
    trial_id: int
    """Index into that task's start states."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Everything the parent process needs of an environment id; importing it loads no simulator."""

    id: str
    """Public id, e.g. "LIBERO-Spatial" or "LIBERO-Spatial/3"."""
    tasks: tuple[Task, ...]
    """In protocol order; `task_id` is the index here."""
    action_dim: int
    """A."""
    action_spec: ActionSpec
    """Convention of the actions the simulator takes."""
    state_dim: int
    """S, length of the proprioceptive vector; 0 means no `state` key."""
    cameras: tuple[str, ...]
    """Observation keys of the images this benchmark can give, main camera first: ("image", "wrist_image")."""
    default_image_size: int
    """Side of the square image when `image_size` is not given, pixels."""
    control_hz: float
    """Simulator (policy) steps per simulated second."""
    simulator: str
    """Entry point "module:Class" of a `vla_gym.simulator.Simulator`; imported only inside a worker."""
    simulator_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Extra keyword arguments of that class (JSON values only)."""
    extra: str | None = None
    """pip extra with the simulator, e.g. "libero"; None when nothing is needed."""
    requires: tuple[str, ...] = ()
    """Importable module names that must be installed, checked before any worker starts."""
    newest_python: tuple[int, int] | None = None
    """The last Python that its packages have wheels for; None when they do not lag behind."""
    batched: bool = False
    """True when `simulator` is a `vla_gym.workers.batch_pool.BatchSimulator`: one object that runs all environments."""
    num_models: int | None = None
    """How many simulator models the tasks share, for the memory plan; None: each task has its own."""
    in_process: bool = False
    """True when a step costs so little that worker processes would only slow it down."""
    privileged_dim: int = 0
    """Length of the vector that scripted experts read, goals included; 0 means the benchmark gives none."""
    places: tuple[int, ...] = ()
    """Which of its numbers are coordinates of things and goals, metres; others are the robot's, turns and sizes."""
    pays_differences: bool = False
    """Whether its reward is a change from step to step already, so that `reward="differenced"` is refused."""
    split: str = "train"
    """Which start states `num_trials` counts; `find_benchmark(id, split=...)` sets it unless the family did."""
    start_kind: str = "start states"
    """Name of the start states beside a success rate; others than the published ones say so."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Constants of the protocol with their sources, written to `protocol.json`."""

    @property
    def suite(self) -> str | None:
        """The one suite of its tasks; None for several."""
        suites = {task.suite for task in self.tasks}
        return suites.pop() if len(suites) == 1 else None

    @property
    def render_quality(self) -> RenderQuality:
        """Quality of its images; "full" where there is no choice."""
        return self.protocol.get("render_quality", "full")

    @property
    def physics(self) -> Physics:
        """How it moves things; "exact" where there is no choice."""
        return self.protocol.get("physics", "exact")
