"""A chunk policy and an environment small enough to work out by hand; a logger that remembers; configurations."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import KVWriter
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.adapters.toy import COLOURS
from vla_gym.simulator import SimStep
from vla_gym.specs import ActionSpec, Benchmark, StartState, Task
from vla_policies import VLAPolicy
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.types import ActionSample, Evaluation
from zoo.config.run_config import RunConfig
from zoo.evaluation.evaluator import EpisodeRecord

CHUNK, DIMS, BINS = 3, 2, 4
Script = list[tuple[float, int, str]]


class StandInPolicy(VLAPolicy):
    """Tokens from a table of logits, the same whatever is seen; the value is `scale` times the image."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, **kwargs: Any) -> None:
        BasePolicy.__init__(self, observation_space, action_space)
        self.logits_KAV = nn.Parameter(torch.zeros(CHUNK, DIMS, BINS))
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=lr_schedule(1))
        backbone: Any = SimpleNamespace(
            continuous=False,
            step_values=False,
            has_adapter=False,
            conventions=SimpleNamespace(chunk=CHUNK),
            keep_features=lambda: None,
        )
        self.backbone = backbone

    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        value_B = self.predict_values(obs).flatten()
        log_probs = self.logits_KAV.log_softmax(-1).expand(len(value_B), -1, -1, -1)
        token_BKA = torch.distributions.Categorical(logits=log_probs).sample()
        return ActionSample(
            action_BKA=token_BKA.float() / BINS,
            logprob_BKA=log_probs.gather(-1, token_BKA[..., None])[..., 0].detach(),
            value_B=value_B.detach(),
            record={"token": token_BKA},
        )

    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        value_B = self.predict_values(obs).flatten()
        log_probs = self.logits_KAV.log_softmax(-1).expand(len(value_B), -1, -1, -1)
        return Evaluation(
            logprob_BKA=log_probs.gather(-1, record["token"][..., None])[..., 0],
            entropy_BKA=-(log_probs.exp() * log_probs).sum(-1),
            value_B=value_B,
        )

    def predict_values(self, obs: Any) -> Tensor:
        image = obs["image"] if isinstance(obs["image"], Tensor) else torch.as_tensor(np.asarray(obs["image"]))
        return self.scale * image.float().flatten(1).mean(dim=1, keepdim=True)


def way_to_what_is_told(obs: Mapping[str, Any]) -> np.ndarray:
    """Chunk of two actions of Toy-Reach towards the block whose colour stands in the instruction, float32 `[2, 2]`."""
    colour = next(rgb for name, rgb in COLOURS.items() if name in obs["instruction"])
    rows, columns = np.nonzero((obs["image"] == colour).all(axis=-1))
    way = 2 * np.array([columns.mean() + 0.5, rows.mean() + 0.5]) / len(obs["image"]) - 1 - obs["state"]
    return np.tile(0.3 * way / np.abs(way).max(), (2, 1)).astype(np.float32)


class SeeingPolicy:
    """Goes where it is told."""

    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        action_BKA = torch.from_numpy(way_to_what_is_told({name: value[0] for name, value in obs.items()}))[None]
        return ActionSample(action_BKA=action_BKA, logprob_BKA=torch.zeros(1, 2, 2), value_B=torch.zeros(1))


class ScriptedSimulator:
    """Plays the script of its task: (reward, executed, how the decision ends) per decision.

    The last step of a decision is paid, and succeeds where it is paid more than 0. The image after t decisions of an
    episode is filled with 10 * t. A decision that ends "lost" fails.
    """

    def __init__(self, tasks: Any, image_size: int, cameras: Any, *, scripts: list[Script]) -> None:
        self.scripts = scripts
        self.script: Script = []
        self.steps = 0

    def reset(self, start: StartState) -> str:
        self.script, self.steps = self.scripts[start.task_id], 0
        return f"{start.task_id:032x}"

    def step(self, action_A: np.ndarray) -> SimStep:
        reward, executed, end = self.script[self.steps // CHUNK]
        if end == "lost":
            raise RuntimeError("lost")
        number = self.steps % CHUNK + 1
        self.steps += 1
        last = number == executed and end != "on"
        paid = reward if number == executed else 0.0
        return SimStep(paid, success=paid > 0, terminated=last and end == "terminated", truncated=last)

    def observe(self) -> dict[str, np.ndarray]:
        return {"image": np.full((8, 8, 3), 10 * -(-self.steps // CHUNK), dtype=np.uint8)}

    def close(self) -> None:
        """Hold nothing."""


def scripted_envs(scripts: list[Script]) -> VLAVectorEnv:
    """Each sub-environment plays one script over and over."""
    tasks = tuple(
        Task(name=f"script_{number}", instruction="go", horizon=1000, num_trials=1, suite="scripted")
        for number in range(len(scripts))
    )
    benchmark = Benchmark(
        id="Scripted",
        tasks=tasks,
        action_dim=DIMS,
        action_spec=ActionSpec(rotation="none", gripper="none", frame="delta"),
        state_dim=0,
        cameras=("image",),
        default_image_size=8,
        control_hz=10.0,
        simulator="tests.zoo.stand_ins:ScriptedSimulator",
        simulator_kwargs={"scripts": scripts},
        in_process=True,
    )
    envs = make_vec(benchmark, num_envs=len(scripts), chunk=CHUNK, on_worker_error="restart")
    envs._runner._next_start = lambda env: StartState(task_id=env, trial_id=0)  # type: ignore[method-assign]
    return envs


class Rows(KVWriter):
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        self.rows.append(dict(key_values))

    def write_sequence(self, sequence: list[str]) -> None:
        """Lines of text are not numbers."""

    def close(self) -> None:
        pass


def finished(total_reward: float, length: int, *, task_id: int = 0) -> EpisodeRecord:
    """A training episode that is solved where it has a reward."""
    solved = total_reward > 0
    return EpisodeRecord(
        task_id=task_id, success_once=solved, success_at_end=solved, total_reward=total_reward, length=length
    )


def toy_config(**settings: Any) -> RunConfig:
    """A run of Toy-Reach with these settings."""
    toy = {"algo": "ppo", "env": "Toy-Reach", "policy": "nano", "n_timesteps": 1, "num_envs": 1, "seed": 0}
    return RunConfig(**{**toy, **settings})
