"""`VLAVectorEnv`: N environments of a benchmark as one Gymnasium vector environment, a chunk per step."""

from __future__ import annotations

import pkgutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig, observation_layout, protocol_record
from vla_gym.vector.stage import CommandRunner, Stage, read_actions
from vla_gym.vector.start_states import Schedule, check_seed, read_reset_options
from vla_gym.vector.step import EnvStep, Observation
from vla_gym.workers.messages import Command
from vla_gym.workers.pool import Pool

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv  # loads torch


class VLAVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """Made by `vla_gym.make_vec`, which documents the arguments.

    `step` takes float `[N, K, A]` in [-1, 1] (clipped), or `[N, A]` when K is 1. It returns fresh arrays:
    the observation after the chunk, reward float64 `[N]` (sum over the chunk), terminated and truncated
    bool `[N]`, and `infos`, whose keys each come with a `_key` mask:

        success       bool      solved at any step of this decision; False where none was run
        task_id       int64     -1 where idle
        trial_id      int64     -1 where idle
        executed      int64     simulator steps really run, 0 .. K
        start_state   object    hex str, equal exactly when two episodes began in the same simulator state
        step_rewards  float32   [N, K], zero where no step was run
        idle          bool      its part of the grid is used up: it costs and does nothing
        lost          bool      the worker failed with the episode (`on_worker_error="restart"`): it is truncated and
                                not counted; a grid repeats its start state
        episode       dict      on the last decision: return, length (simulator steps), success_once,
                                success_at_end, seconds

    What happens after an episode's end is `metadata["autoreset_mode"]`: NEXT_STEP and SAME_STEP as Gymnasium
    defines them; with DISABLED a finished environment is held (executed 0, reward 0, no success, same observation,
    `terminated` and `truncated` stay) until `reset(options={"reset_mask": ...})`.
    """

    def __init__(self, benchmark: Benchmark, config: EnvConfig, schedule: Schedule, pool: Pool) -> None:
        self.benchmark = benchmark
        self.config = config
        self.num_envs = config.num_envs
        self.chunk = config.chunk
        self.render_mode = "rgb_array"
        self.layout = observation_layout(benchmark, config)
        self.single_observation_space: spaces.Dict = self.layout.space()
        self.single_action_space: spaces.Box = spaces.Box(-1.0, 1.0, (config.chunk, benchmark.action_dim), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": benchmark.control_hz / config.chunk,
            "autoreset_mode": config.autoreset_mode,
        }
        self._runner = CommandRunner(benchmark, self.num_envs, self.chunk, schedule, pool)
        self._table = self._runner.table
        self._was_reset = False
        self.last_step: EnvStep
        """The result of the last step or reset, of every environment."""
        self.pool = pool
        """Runs the sub-environments."""
        self._finalizer = weakref.finalize(self, pool.close)

    # -- Gymnasium ---------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode in every environment, or in those of `options["reset_mask"]` (bool `[N]`).

        `seed` starts the whole schedule anew from it; without one, random episodes go on where they were
        and a grid starts again. `options` may also name the start states: `task_id` and `trial_id`, int or
        int `[N]` (such episodes are not taken from the schedule).
        """
        step = self.run_reset(seed=seed, options=options)
        return step.obs, step.infos()

    def run_reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> EnvStep:
        """Do as `reset`, and return one record."""
        self._require_open()
        if seed is not None:
            seed = check_seed(seed)
        super().reset(seed=seed)
        mask_N, starts = read_reset_options(options, self.num_envs, self.benchmark.tasks)
        if mask_N is None:
            mask_N = np.ones(self.num_envs, dtype=np.bool_)
            if self._runner.schedule.kind == "grid":
                self._table.begin_schedule()
            self._table.align(self._runner.schedule.group_size)
        elif not self._was_reset and not mask_N.all():
            raise gym.error.ResetNeeded("the first reset must begin an episode in every slot")
        if seed is not None:
            self._runner.schedule = self._runner.schedule.reseeded(seed)
            self._table.begin_schedule()
        step = self._run(self._runner.begin_commands(np.flatnonzero(mask_N).tolist(), starts))
        self._was_reset = True
        return step

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Run one decision; see the class."""
        running_N = self._table.running
        step = self.run_step(actions)
        infos, obs = step.infos(), step.obs
        ended_N = running_N & step.done_n
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended_N.any():
            obs, infos = self._begin_same_step(ended_N, step)
        return obs, step.reward_n, step.terminated_n, step.truncated_n, infos

    def run_step(self, actions: np.ndarray) -> EnvStep:
        """Run one decision and return one record; resets as mode DISABLED, or NEXT_STEP if that is the mode."""
        self._require_open()
        if not self._was_reset:
            raise gym.error.ResetNeeded("call reset() before step()")
        running_N = self._table.running
        action_NKA = read_actions(actions, running_N, self.single_action_space, self._runner.where)
        commands: list[Command] = []
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            commands += self._runner.begin_commands(np.flatnonzero(self.finished).tolist())
        commands += self._runner.step_commands(np.flatnonzero(running_N).tolist(), list(action_NKA[running_N]))
        return self._run(commands)

    def render(self) -> tuple[np.ndarray, ...]:
        """Main-camera frame of each last observation, uint8 `[H, W, 3]` each."""
        frame_NHWC = self.pool.memory.observation[self.layout.cameras[0]]
        return tuple(frame.copy() for frame in frame_NHWC)

    def close_extras(self, **kwargs: Any) -> None:
        """End every worker; called by `close`, at exit and by the garbage collector."""
        self._finalizer()

    # -- More than Gymnasium -----------------------------------------------------------------------

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """Present mode; see the class."""
        return self.metadata["autoreset_mode"]

    @property
    def finished(self) -> np.ndarray:
        """Bool `[N]`: the episode has ended and no new one has begun."""
        return self._table.now.done_n

    @property
    def idle(self) -> np.ndarray:
        """Bool `[N]`: the part of the grid is used up."""
        return self._table.now.idle_n.copy()

    @property
    def stages(self) -> list[Stage]:
        """`pipeline_stages` equal parts that step independently; for mode DISABLED, after a reset."""
        size = self.num_envs // self.config.pipeline_stages
        return [
            Stage(self._runner, range(first, first + size), self.single_action_space, self._closed_on_failure)
            for first in range(0, self.num_envs, size)
        ]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty when everything runs in this process."""
        return self.pool.pids()

    def as_sb3(self) -> VecEnv:
        """This environment as a `vla_gym.vector.sb3.SB3VecEnv`, which owns it from now on (mode DISABLED)."""
        self.metadata["autoreset_mode"] = AutoresetMode.DISABLED
        return pkgutil.resolve_name("vla_gym.vector.sb3:SB3VecEnv")(self)

    def protocol(self) -> dict[str, Any]:
        """Everything a success rate depends on, as JSON values (`protocol.json`)."""
        return protocol_record(self.benchmark, self.config)

    def set_start_weights(self, weight_P: np.ndarray | None) -> None:
        """Draw the start states of the episodes that begin from now on in proportion to `weight_P`; None = uniformly.

        One weight per start state, task-major, `[sum of num_trials]`. They stay until they are set again, also with
        `reset(seed=...)`; `state_dict` does not hold them. Raises `BadValue` for a grid and for weights that are none.
        """
        self._runner.schedule = self._runner.schedule.weighted(weight_P)

    def state_dict(self) -> dict[str, Any]:
        """Schedule position and every episode's action log, as JSON values; costs no simulator time."""
        return self._runner.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> tuple[Observation, dict[str, Any]]:
        """Replay to the state that `state_dict` saved; returns what `reset` returns.

        Raises `BadValue` when the state is of another environment, and, after closing this one, when a replay does not
        reach it.
        """
        self._require_open()
        commands = self._runner.replay_commands(state)
        self._runner.schedule = self._runner.schedule.reseeded(int(state["seed"]))
        with self._closed_on_failure():
            step = self._runner.restore(state, commands)
        self._was_reset = True
        return step.obs, step.infos()

    # -- Inside ------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        self._check_open()
        if self._runner.num_pending:
            raise gym.error.AlreadyPendingCallError(
                "a rollout is stepping this environment: evaluate on another one, or receive() what its stages were "
                "sent first",
                "send_step",
            )

    def _check_open(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(
                f"{self} is closed, as after close(), a failure, or Ctrl-C within a step; make another one (a model "
                "takes it by set_env)"
            )

    def _run(self, commands: Sequence[Command]) -> EnvStep:
        with self._closed_on_failure():
            self.last_step = self._runner.run(commands)
        return self.last_step

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except BaseException:  # also Ctrl-C: episodes are then somewhere in the middle
            self.close()
            raise

    def _begin_same_step(self, ended_N: np.ndarray, step: EnvStep) -> tuple[Observation, dict[str, Any]]:
        """Reset where an episode ended; its last observation and info move to `final_obs` and `final_info`."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        ended = np.flatnonzero(ended_N).tolist()
        for env in ended:
            final_obs[env] = {
                key: value[env] if key == "instruction" else value[env].copy() for key, value in step.obs.items()
            }
        begun = self._run(self._runner.begin_commands(ended))
        return begun.obs, step.followed_by(begun, ended_N).infos() | {
            "final_obs": final_obs,
            "_final_obs": ended_N,
            "final_info": step.infos(ended_N),
            "_final_info": ended_N.copy(),
        }
