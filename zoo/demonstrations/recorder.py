"""Records episodes: the order of start states, a frame for each simulator step, and experts that act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vla_gym.specs import StartState, Task
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.experts import Expert

REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
"""LeRobot's names for the outcome of a step."""
EXECUTED = "vla_zoo.executed"
"""Column of datasets of whole decisions: simulator steps run of a frame's chunk."""
PRIVILEGED = "vla_zoo.privileged"
"""Column of what an expert saw: poses in metres, the goal. Not named "observation.*", which policies take as input."""
DRAWN = "vla_zoo.drawn"
"""Column of datasets drawn every few steps only: whether a frame was. Between them stands what was drawn last."""
HOLD = 5
"""Steps for which an arm that wanders is moved alike: with another action each step it would stay where it is."""
_KEPT = "kept"
_CAMERAS = ("image", "wrist_image")
Observations = Mapping[str, Any]
"""Of all environments, as Gymnasium's vector environments return them."""
Attempt = tuple[StartState, int]
"""A start state and the round it is tried in."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One environment's action in one step."""

    action_A: np.ndarray
    """Right action for the dataset, float32."""
    executed_A: np.ndarray
    """Action for the simulator, float32."""
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    """More columns of this frame."""
    kept: bool = True
    """Whether the frame belongs to the dataset."""


Act = Callable[[Observations, Sequence[int]], Mapping[int, Choice]]
"""Takes the observations of all environments and returns a choice for each of those whose episode still runs."""


@dataclass(frozen=True)
class StoredImages:
    """A camera's images of an episode in the files of its dataset; numpy reads them each time it wants an array."""

    shape: tuple[int, int, int, int]
    """(T, H, W, 3), as `read` returns them."""
    read: Callable[[], np.ndarray]
    """Reads them, uint8; raises `BadValue` where that fails."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.read()


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One episode of T simulator steps, a frame each: an observation, then the action that is right there.

    Of an episode that a student began, or in which the arm wandered, the steps from where the expert took over.
    """

    task: str
    instruction: str
    start: StartState
    start_state: str
    """Hash of the simulator state it began in."""
    success: bool
    """Solved at any step."""
    images: Mapping[str, np.ndarray | StoredImages]
    """Camera -> uint8 `[T, H, W, 3]`, before the step."""
    state_TS: np.ndarray
    """Proprioception before the step, float32; S may be 0."""
    action_TA: np.ndarray
    """Actions, float32 in [-1, 1]; with noise, not what was executed but what would have been right."""
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    """More columns of a dataset: name -> `[T]` or `[T, D]`, float32, int64 or bool."""

    @property
    def length(self) -> int:
        """T."""
        return len(self.action_TA)


def all_attempts(tasks: Sequence[Task], num_rounds: int) -> list[Attempt]:
    """Return every (start state, round) in the order they are tried: all tasks' trial 0, all tasks' trial 1, ..."""
    longest = max(task.num_trials for task in tasks)
    return [
        (StartState(task_id=task_id, trial_id=trial), number)
        for number in range(num_rounds)
        for trial in range(longest)
        for task_id, task in enumerate(tasks)
        if trial < task.num_trials
    ]


def demonstrate(
    envs: VLAVectorEnv,
    make_expert: Callable[[Task], Expert],
    attempts: Sequence[Attempt],
    *,
    noise: float = 0.0,
    seed: int = 0,
    lead: float = 0.0,
    leader: Act | None = None,
    chunk: int = 1,
) -> list[Demonstration]:
    """Return one episode of an expert for each attempt, at most as many as environments, all at once; in their order.

    `envs`: chunk 1, `privileged`, autoreset DISABLED. With `noise` the executed action is the expert's plus a normal
    deviate of that standard deviation. What is drawn follows from (seed, start state, round) alone.

    With `lead` up to that share of an episode's horizon is played by another before the expert takes over, and only
    what the expert then does is kept; an episode that ends before has no frames.

    * A `leader`, a student, leads for whole chunks of `chunk` steps. Imitation errs where its own errors lead, which an
      expert's demonstrations do not show (Ross et al. 2011, DAgger, arXiv:1011.0686). A policy that decides chunks
      cannot be corrected step by step: the K actions that an expert would say along the student's path are no chunk
      that it would play. So the two take turns as in HG-DAgger (Kelly et al. 2019, arXiv:1810.02890).
    * Without one the arm wanders: it is moved at random. An expert goes straight to its thing, so after its first steps
      the arm's own place tells where the thing is, and a policy learns to read that instead of the image (de Haan et
      al. 2019, "Causal Confusion in Imitation Learning", arXiv:1905.11979). An arm that wandered tells nothing.
    """
    tasks = [envs.benchmark.tasks[start.task_id] for start, _ in attempts]
    experts = [make_expert(task) for task in tasks]
    generators = [np.random.default_rng([seed, start.task_id, start.trial_id, number]) for start, number in attempts]
    led_steps = [0] * len(attempts)
    if lead:
        pairs = zip(tasks, generators, strict=True)
        led_steps = [chunk * int(drawn.integers(0, int(lead * task.horizon / chunk) + 1)) for task, drawn in pairs]
        leader = leader or _wandering(generators, envs.benchmark.action_dim)
    step = 0

    def act(obs: Observations, live: Sequence[int]) -> dict[int, Choice]:
        nonlocal step
        choices: dict[int, Choice] = {}
        if leader is not None and (led := [env for env in live if step < led_steps[env]]):
            visible = {key: value for key, value in obs.items() if key != "privileged"}
            choices |= leader(visible, led)
        step += 1
        for env in live:
            privileged_P = obs["privileged"][env]
            extra = {PRIVILEGED: privileged_P.astype(np.float32)}
            if env in choices:
                choices[env] = replace(choices[env], extra=extra, kept=False)
            else:
                wanted_A = experts[env].action(privileged_P)
                noise_A = noise * generators[env].standard_normal(len(wanted_A))
                executed_A = (wanted_A + noise_A).astype(np.float32)
                choices[env] = Choice(action_A=wanted_A, executed_A=executed_A, extra=extra)
        return choices

    return record(envs, act, attempts)


def _wandering(generators: Sequence[np.random.Generator], action_dim: int) -> Act:
    """Return what moves arms at random: actions uniform in [-1, 1], each held for `HOLD` steps."""
    step, held = 0, {}

    def act(obs: Observations, live: Sequence[int]) -> dict[int, Choice]:
        nonlocal step, held
        if step % HOLD == 0:
            held = {env: generators[env].uniform(-1.0, 1.0, action_dim).astype(np.float32) for env in live}
        step += 1
        return {env: Choice(action_A=held[env], executed_A=held[env]) for env in live}

    return act


def record(
    envs: VLAVectorEnv,
    act: Act,
    attempts: Sequence[Attempt],
    on_end: Callable[[Observations, int, bool], None] | None = None,
) -> list[Demonstration]:
    """Return one episode for each attempt, a frame for each simulator step.

    `on_end` is told of each episode's end: the observations of the state that it ended in, the environment, and whether
    the task's own rule ended it rather than time.
    """
    if envs.chunk != 1 or len(attempts) > envs.num_envs:
        raise ValueError(f"{len(attempts)} attempts for {envs.num_envs} environments, chunk {envs.chunk}")
    padded = [attempts[min(env, len(attempts) - 1)][0] for env in range(envs.num_envs)]
    task_N, trial_N = (np.array([getattr(start, name) for start in padded]) for name in ("task_id", "trial_id"))
    obs, infos = envs.reset(options={"task_id": task_N, "trial_id": trial_N})
    start_states = list(infos["start_state"])
    frames: list[list[dict[str, np.ndarray]]] = [[] for _ in attempts]
    step, every = 0, envs.config.draw_every
    action_NA = np.zeros((envs.num_envs, envs.benchmark.action_dim), dtype=np.float32)
    live = list(range(len(attempts)))
    while live:
        drawn = {DRAWN: np.asarray(step % every == 0)} if every > 1 else {}
        for env, choice in act(obs, live).items():
            seen = {key: obs[key][env] for key in (*_CAMERAS, "state") if key in obs}
            kept = {_KEPT: np.asarray(choice.kept), **drawn}
            frames[env].append({**seen, "action": choice.action_A, **choice.extra, **kept})
            action_NA[env] = choice.executed_A
        obs, reward_N, terminated_N, truncated_N, infos = envs.step(action_NA)
        step += 1
        for env in tuple(live):
            done = bool(terminated_N[env] or truncated_N[env])
            frames[env][-1] |= {
                REWARD: np.asarray(reward_N[env], dtype=np.float32),
                DONE: np.asarray(done),
                SUCCESS: np.asarray(infos["success"][env], dtype=bool),
            }
            if done:
                live.remove(env)
                if on_end is not None:
                    on_end(obs, env, bool(terminated_N[env]))
    return [
        _demonstration(envs.benchmark.tasks[start.task_id], start, start_states[env], frames[env])
        for env, (start, _) in enumerate(attempts)
    ]


def _demonstration(
    task: Task, start: StartState, start_state: str, frames: Sequence[Mapping[str, np.ndarray]]
) -> Demonstration:
    columns = {key: np.stack([frame[key] for frame in frames]) for key in frames[0]}
    solved, kept_T = bool(columns[SUCCESS].any()), columns.pop(_KEPT)
    columns = {key: column[kept_T] for key, column in columns.items()}
    no_state = np.zeros((int(kept_T.sum()), 0), dtype=np.float32)
    return Demonstration(
        task=task.name,
        instruction=task.instruction,
        start=start,
        start_state=start_state,
        success=solved,
        images={key: columns.pop(key) for key in _CAMERAS if key in columns},
        state_TS=columns.pop("state", no_state).astype(np.float32),
        action_TA=columns.pop("action"),
        extra=columns,
    )
