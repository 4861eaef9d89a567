"""`env_wrapper` and `callback`: classes of the user's in recipes and `-params`, as in rl_zoo3."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from vla_gym.errors import BadValue, VLAZooError
from zoo.cli.main import main
from zoo.config import gym_packages
from zoo.config.gym_packages import PUBLISHED, import_parts
from zoo.config.run_config import check_settings
from zoo.runs.folder import RunFolder

MODULE = """
from gymnasium.vector import VectorRewardWrapper
from stable_baselines3.common.callbacks import BaseCallback

class Scaled(VectorRewardWrapper):
    def __init__(self, env, by=1.0):
        super().__init__(env)
        self.by = by

    def rewards(self, rewards):
        return self.by * rewards

class StopAfter(BaseCallback):
    def __init__(self, rollouts):
        super().__init__()
        self.left = rollouts

    def _on_rollout_start(self):
        self.left -= 1

    def _on_step(self):
        return self.left >= 0
"""
FLAGS = "train --env Toy-Reach -n 400 --num-envs 4 --seed 0 --num-threads 1 --device cpu -params eval_episodes:0"
TRAIN = [*FLAGS.split(), "n_steps:4", "batch_size:16", "n_epochs:1", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]


@pytest.fixture(autouse=True)
def module_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(gym_packages, "_asked", {})
    sys.modules.pop("my_parts", None)
    Path("my_parts.py").write_text(MODULE)


@pytest.mark.processes
def test_a_recipe_s_wrapper_pays_and_its_callback_stops(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["env_wrapper:[my_parts.Scaled, {my_parts.Scaled: {by: 0}}]", "callback:{my_parts.StopAfter: {rollouts: 2}}"]
    assert main([*TRAIN, *own]) == 0
    run = RunFolder(Path("logs/ppo/Toy-Reach_1"))
    assert 0 < run.saved_steps()[-1] < 400, "the callback ended it"
    assert run.config().callback == {"my_parts.StopAfter": {"rollouts": 2}}
    lines = run.path.joinpath("metrics.jsonl").read_text()
    assert '"rollout/rewards": 0.0' in lines
    capsys.readouterr()
    # What came from the Hub imports nothing unasked, and what was asked for works.
    args = run.path / "args.yml"
    args.write_text(args.read_text() + f"{PUBLISHED}: []\n")
    assert main(["train", "-i", str(run.path), "-n", "400"]) == 2
    assert "code that is not imported unasked" in capsys.readouterr().err
    assert main(["train", "-i", str(run.path), "-n", "400", "--gym-packages", "my_parts"]) == 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("my_parts.Scald", "no env_wrapper of my_parts 'Scald'.*Did you mean 'Scaled'"),
        ("no_parts.Scaled", "env_wrapper: no module 'no_parts'"),
    ],
)
def test_a_class_that_is_not_there_is_named(value: str, says: str) -> None:
    with pytest.raises(VLAZooError, match=says):
        import_parts(value, "env_wrapper")


@pytest.mark.parametrize("value", ["Scaled", 3, ["a.B", 3], {"a.B": 1}, "a.B(1)"])
def test_what_names_no_class_is_refused(value: object) -> None:
    with pytest.raises(BadValue, match=r"-params: callback must be a class such as my_rewards\.Closer"):
        check_settings("ppo", {"callback": value}, "-params")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("env_wrapper:{my_parts.Scaled: {bye: 2}}", "env_wrapper: .*bye"),
        ("callback:my_parts.Scaled", "callback: .*env"),
        ("env_wrapper:gymnasium.Wrapper", "env_wrapper: .*Env"),
        ("callback:my_parts.MODULE", "callback of my_parts 'MODULE'"),
    ],
)
def test_a_class_that_does_not_fit_leaves_no_run(pair: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, pair]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(says, line), line
    assert not list(Path("logs").rglob("config.yml"))
