"""Records episodes: the order of start states, a frame for each simulator step, and experts that act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from vla_gym.errors import VLAZooError
from vla_gym.specs import StartState, Task
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.demonstrations.stored_pictures import StoredPictures
from zoo.experts import Expert

REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
"""LeRobot's names for the outcome of a step."""
PRIVILEGED = "vla_zoo.privileged"
"""Column of what an expert saw: poses in metres, the goal. Not named "observation.*", which policies take as input."""
_KEPT = "kept"
Attempt = tuple[StartState, int]
"""A start state and the round it is tried in."""
_CAMERAS = ("image", "wrist_image")


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


class Actor(Protocol):
    """Acts in several environments at once."""

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> Mapping[int, Choice]:
        """Return a choice for each environment whose episode still runs."""

    def ended(self, obs: Mapping[str, Any], env: int, *, terminated: bool) -> None:
        """An environment's episode is over, by the task's rule or else by time, in the state that `obs` shows.

        Nothing is done about it unless a class says so.
        """
        return


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One episode of T simulator steps, a frame each: an observation, then the expert's action.

    Of an episode that a student began, the steps from where the expert took over.
    """

    task: str
    """Name of the task."""
    instruction: str
    """Instruction for a policy."""
    start: StartState
    """Where it began."""
    start_state: str
    """Hash of the simulator state it began in."""
    success: bool
    """Solved at any step."""
    images: Mapping[str, np.ndarray | StoredPictures]
    """Camera -> uint8 `[T, H, W, 3]`, before the step."""
    state_TS: np.ndarray
    """Proprioception before the step, float32; S may be 0."""
    action_TA: np.ndarray
    """The expert's actions, float32 in [-1, 1]; with noise, not what was executed but what would have been right."""
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    """More columns of a dataset: name -> `[T]` or `[T, D]`, float32, int64 or bool."""

    @property
    def length(self) -> int:
        """T."""
        return len(self.action_TA)


class Interrupted(VLAZooError):
    """An error that ended recording; the episodes before the first unfinished one are there."""

    def __init__(self, cause: VLAZooError, episodes: Sequence[Demonstration]) -> None:
        super().__init__(str(cause))
        self.cause, self.episodes = cause, episodes


def all_attempts(tasks: Sequence[Task], num_rounds: int) -> list[Attempt]:
    """Every (start state, round) in the order they are tried: all tasks' trial 0, all tasks' trial 1, ..."""
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
) -> list[Demonstration]:
    """One episode of an expert for each attempt, at most as many as environments, all at once; in their order.

    `envs`: chunk 1, `privileged`, autoreset DISABLED. With `noise` the executed action is the expert's plus a
    normal deviate of that standard deviation, drawn from (seed, start state, round) alone.
    """
    actor = _ExpertActor(experts_of(envs, make_expert, attempts), generators_of(attempts, seed), noise)
    return record(envs, actor, attempts)


def experts_of(envs: VLAVectorEnv, make_expert: Callable[[Task], Expert], attempts: Sequence[Attempt]) -> list[Expert]:
    """Return an expert for the task of each attempt."""
    return [make_expert(envs.benchmark.tasks[start.task_id]) for start, _ in attempts]


def generators_of(attempts: Sequence[Attempt], seed: int) -> list[np.random.Generator]:
    """Return a generator for each attempt: what it draws follows from (seed, start state, round) alone."""
    return [np.random.default_rng([seed, start.task_id, start.trial_id, number]) for start, number in attempts]


def expert_choice(expert: Expert, privileged_P: np.ndarray, generator: np.random.Generator, noise: float) -> Choice:
    """What an expert does, and what is executed: with normal deviates of standard deviation `noise` added."""
    wanted_A = expert.action(privileged_P)
    noise_A = noise * generator.standard_normal(len(wanted_A))
    return Choice(
        action_A=wanted_A,
        executed_A=(wanted_A + noise_A).astype(np.float32),
        extra={PRIVILEGED: privileged_P.astype(np.float32)},
    )


class _ExpertActor(Actor):
    """An expert for each environment, and the generator of its noise."""

    def __init__(self, experts: Sequence[Expert], generators: Sequence[np.random.Generator], noise: float) -> None:
        self._experts, self._generators, self._noise = experts, generators, noise

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> dict[int, Choice]:
        return {
            env: expert_choice(self._experts[env], obs["privileged"][env], self._generators[env], self._noise)
            for env in live
        }


def record(envs: VLAVectorEnv, actor: Actor, attempts: Sequence[Attempt]) -> list[Demonstration]:
    """One episode for each attempt, a frame for each simulator step.

    Where a policy server or a simulator fails, `Interrupted` brings the leading episodes that were finished, if any.
    """
    if envs.chunk != 1 or len(attempts) > envs.num_envs:
        raise ValueError(f"{len(attempts)} attempts for {envs.num_envs} environments, chunk {envs.chunk}")
    num_envs, tasks = envs.num_envs, envs.benchmark.tasks
    padded = [attempts[min(env, len(attempts) - 1)][0] for env in range(num_envs)]
    obs, infos = envs.reset(
        options={
            "task_id": np.array([start.task_id for start in padded]),
            "trial_id": np.array([start.trial_id for start in padded]),
        }
    )
    frames: list[list[dict[str, np.ndarray]]] = [[] for _ in attempts]
    hashes = list(infos["start_state"])
    live = list(range(len(attempts)))

    def finished(count: int) -> list[Demonstration]:
        return [
            _demonstration(tasks[start.task_id], start, hashes[env], frames[env])
            for env, (start, _) in enumerate(attempts[:count])
        ]

    try:
        _play(envs, actor, obs, live, frames)
    except VLAZooError as error:
        if min(live) == 0:
            raise
        raise Interrupted(error, finished(min(live))) from error
    return finished(len(attempts))


def _play(
    envs: VLAVectorEnv,
    actor: Actor,
    obs: Mapping[str, Any],
    live: list[int],
    frames: Sequence[list[dict[str, np.ndarray]]],
) -> None:
    """Step until no environment is `live`; an episode that ends leaves that list."""
    action_NA = np.zeros((envs.num_envs, envs.benchmark.action_dim), dtype=np.float32)
    while live:
        for env, choice in actor.act(obs, live).items():
            seen = {key: obs[key][env] for key in (*_CAMERAS, "state") if key in obs}
            frames[env].append({**seen, "action": choice.action_A, **choice.extra, _KEPT: np.asarray(choice.kept)})
            action_NA[env] = choice.executed_A
        obs, reward_N, terminated_N, truncated_N, infos = envs.step(action_NA)
        for env in tuple(live):
            done = bool(terminated_N[env] or truncated_N[env])
            frames[env][-1] |= {
                REWARD: np.asarray(reward_N[env], dtype=np.float32),
                DONE: np.asarray(done),
                SUCCESS: np.asarray(infos["success"][env], dtype=bool),
            }
            if done:
                actor.ended(obs, env, terminated=bool(terminated_N[env]))
                live.remove(env)


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
