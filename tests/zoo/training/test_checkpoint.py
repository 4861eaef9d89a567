"""A resumed run's numbers are those of a run that never stopped, bit for bit; damage is named."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.forks import code_of, forked
from tests.zoo.stand_ins import Rows
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from vla_policies.checkpoint_io.manifest import extend_manifest
from zoo import GRPO, PPO
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.config.settings import build_schedule
from zoo.runs.folder import STATE_FILE, RunFolder
from zoo.training.callbacks import CheckpointCallback
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

# Runs of a few updates learn nothing, and say so.
pytestmark = [
    pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning"),
    pytest.mark.processes,
]

TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}


def build(algo: str, **kwargs: Any) -> VLAOnPolicyAlgorithm:
    falling = build_schedule({"schedule": "linear", "start": 3e-4})
    shared = {"learning_rate": falling, "policy_kwargs": TINY, "seed": 3, "device": "cpu", "n_epochs": 2}
    if algo == "ppo":
        envs = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=4, seed=5)
        return PPO("VLAPolicy", envs, n_steps=5, batch_size=8, **shared, **kwargs)
    envs = vla_gym.make_vec("Toy-Reach", num_envs=8, chunk=4, group_size=4, seed=5)
    return GRPO("VLAPolicy", envs, rollouts_per_update=2, batch_size=16, **shared, **kwargs)


class StopIn(BaseCallback):
    """Stops in the given rollout (from 1) at the given decision (from 1)."""

    def __init__(self, rollout: int, decision: int = 1) -> None:
        super().__init__()
        self._until, self._decision, self._rollouts, self._decisions = rollout, decision, 0, 0

    def _on_rollout_start(self) -> None:
        self._rollouts += 1
        self._decisions = 0

    def _on_step(self) -> bool:
        self._decisions += 1
        return not (self._rollouts == self._until and self._decisions == self._decision)


def learn(
    model: VLAOnPolicyAlgorithm, total: int, callback: Any = None, *, resumed: bool = False
) -> list[dict[str, Any]]:
    """Numbers of every update, times excepted."""
    rows = Rows()
    model.set_logger(Logger(None, [rows]))
    steps = total - model.num_timesteps if resumed else total
    model.learn(steps, callback=callback, reset_num_timesteps=not resumed)
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows.rows]


def counters_of(folder: Path) -> dict[str, Any]:
    """The counters in a checkpoint."""
    return json.loads((folder / STATE_FILE).read_text())["counters"]  # type: ignore[no-any-return]


def same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    return json.dumps(first, default=float) == json.dumps(second, default=float)


@pytest.fixture(scope="module")
def whole() -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """Simulator steps and numbers of uninterrupted runs of at least six updates."""
    totals = {"ppo": 420, "grpo": 950}
    runs = {algo: (total, learn(build(algo), total)) for algo, total in totals.items()}
    assert all(len(rows) >= 6 for _, rows in runs.values())
    return runs


ROUNDS = {"rounds_per_update": 2, "loss_weight": "trajectory", "masked_minibatches": True}
SAMPLED, COPY = {"start_sampling": "learnability"}, {"kl_coef": 0.05, "kl_reference": "copy"}


@pytest.mark.parametrize(
    ("algo", "settings", "total", "stop"),
    [
        *((algo, {}, 0, (4, decision)) for algo in ("ppo", "grpo") for decision in (1, 3)),
        ("ppo", SAMPLED, 300, (3, 3)),
        ("grpo", SAMPLED, 650, (3, 3)),
        ("ppo", COPY, 300, (3, 1)),
        ("grpo", COPY, 700, (3, 1)),
        ("ppo", ROUNDS, 400, (3, 2)),
        pytest.param("ppo", {"critic_warmup_updates": 3}, 420, (3, 2), marks=pytest.mark.thorough),
        ("grpo", {"resample_dead_groups": 1}, 1500, (2, 3)),
    ],
)
def test_a_resumed_run_repeats_the_uninterrupted_one(
    algo: str, settings: dict[str, Any], total: int, stop: tuple[int, int], whole: Any, tmp_path: Path
) -> None:
    """Stopped in a rollout at a decision, which `stop` names."""
    total, expected = (total, learn(build(algo, **settings), total)) if settings else whole[algo]
    stopped = build(algo, **settings)
    before = learn(stopped, total, StopIn(*stop))
    folder = save_checkpoint(stopped, tmp_path)
    _spoil_generators()
    resumed = build(algo, verbose=0, **settings)
    load_checkpoint(resumed, folder)
    assert len(before) == stop[0] - 1
    assert same(before + learn(resumed, total, resumed=True), expected)
    if "resample_dead_groups" in settings:
        assert any(row["rollout/resample_rounds"] for row in expected)


def _spoil_generators() -> None:
    torch.manual_seed(77)
    np.random.seed(77)


def test_the_comparison_can_fail(whole: Any):
    total, expected = whole["ppo"]
    other = build("ppo")
    other.set_random_seed(4)
    assert not same(learn(other, total), expected)


def test_a_run_killed_at_once_goes_on_in_another_process(whole: Any, tmp_path: Path):
    total, expected = whole["ppo"]

    def go_on() -> None:
        """Train, on from the newest checkpoint where there is one; the numbers of its updates as JSON."""
        model, saved = build("ppo"), RunFolder(tmp_path).saved_steps()
        if saved:
            load_checkpoint(model, RunFolder(tmp_path).checkpoint(saved[-1]))
        rows = learn(model, total, CheckpointCallback(tmp_path, save_freq=1), resumed=bool(saved))
        (tmp_path / "rows.json").write_text(json.dumps(rows, default=float))

    child = forked(go_on, tmp_path / "said")
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("checkpoints/step_*"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.kill()
    assert code_of(child) == -signal.SIGKILL, "it ended before it could be killed"
    assert code_of(forked(go_on, tmp_path / "said")) == 0, (tmp_path / "said").read_text()
    after = json.loads((tmp_path / "rows.json").read_text())
    assert 0 < len(after) < len(expected)
    assert same(after, expected[-len(after) :])


def test_the_policy_in_a_checkpoint_is_the_present_one_and_no_file_a_pickle(tmp_path: Path):
    model = build("ppo")
    learn(model, 1)
    folder = save_checkpoint(model, tmp_path)
    loaded = VLAPolicy.from_pretrained(folder, device="cpu")
    for name, tensor in model.policy.backbone.state_dict().items():
        assert torch.equal(loaded.backbone.state_dict()[name], tensor), name
    assert counters_of(folder)["num_timesteps"] == model.num_timesteps
    assert folder.name == f"step_{model.num_timesteps}"
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors"}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a short PPO run."""
    model = build("ppo")
    learn(model, 1)
    return save_checkpoint(model, tmp_path_factory.mktemp("short"))


@pytest.fixture
def saved(short: Path, tmp_path: Path) -> Path:
    """It, to be changed."""
    return Path(shutil.copytree(short, tmp_path / short.name))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "rollout.safetensors", STATE_FILE])
def test_a_missing_file_is_named(saved: Path, name: str):
    (saved / name).unlink()
    with pytest.raises(BadValue, match=rf"step_\d+'.* (it )?lacks '?{re.escape(name)}"):
        load_checkpoint(build("ppo"), saved)


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint's state, and its hash into the manifest."""
    (folder / STATE_FILE).write_text(json.dumps(state))
    extend_manifest(folder, [STATE_FILE])


def damage(state: dict[str, Any], keys: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """`state` with one value in it replaced."""
    changed = json.loads(json.dumps(state))
    place = changed
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return changed


def test_whatever_a_state_says_is_checked(saved: Path):
    path = saved / STATE_FILE
    state = json.loads(path.read_text())
    for keys, value in (
        (("rng", "python", "words", 2), None),
        (("rng", "numpy", "keys"), "x"),
        (("rng", "torch"), ""),
        (("counters", "num_timesteps"), -1),
        (("counters", "num_timesteps"), 10**30),
        (("counters",), [1]),
        (("param_groups",), None),
        (("param_groups", 0, "params"), [99]),
        (("episodes",), {"a": 1}),
        (("env", "slots", 0), 7),
        (("env", "slots", 0, "task_id"), 99),
        (("env", "slots", 0, "actions"), "!"),
        (("env", "episodes"), ["x"]),
    ):
        write_state(saved, damage(state, keys, value))
        with pytest.raises(BadValue):
            load_checkpoint(build("ppo"), saved)


def test_settings_are_no_counters(saved: Path):
    path, model = saved / STATE_FILE, build("ppo")
    state = json.loads(path.read_text())
    state["counters"] |= {"gamma": 0.0, "n_epochs": 0, "noise_seed_": 1}
    write_state(saved, state)
    load_checkpoint(model, saved)
    assert (model.gamma, model.n_epochs) == (0.99, 2)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("kind", ["nan", "names", "shapes"])
def test_tensors_that_cannot_be_the_runs_are_refused(saved: Path, name: str, kind: str):
    tensors = load_file(saved / name)
    key = max(key for key, value in tensors.items() if value.is_floating_point() and value.ndim)
    if kind == "nan":
        tensors[key].view(-1)[0] = float("nan")
    elif kind == "names":
        tensors["999.another"] = tensors.pop(key)
    else:
        tensors[key] = tensors[key][:0].clone()
    save_file(tensors, saved / name)
    extend_manifest(saved, [name])
    with pytest.raises(BadValue):
        load_checkpoint(build("ppo"), saved)


def test_a_checkpoint_of_another_algorithm_is_refused(saved: Path):
    with pytest.raises(BadValue, match="algorithm='PPO', this run has 'GRPO'"):
        load_checkpoint(build("grpo"), saved)
