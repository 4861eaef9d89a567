"""A Gymnasium environment of the user's: described once, driven like every benchmark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import vla_gym
from vla_gym import gymnasium_envs, registry
from vla_gym.checks import check_vla_env
from vla_gym.errors import BadValue, UnknownName
from vla_gym.gymnasium_envs import scaled_state

YARD = """
import gymnasium as gym
import numpy as np

class Yard(gym.Env):
    observation_space = gym.spaces.Box(0.0, 2.0, (3,), np.float64)
    action_space = gym.spaces.Box(np.float32([0.0, -4.0]), np.float32([2.0, 4.0]))
    metadata = {"render_modes": ["rgb_array"]}
    steps = []

    def __init__(self, speed=0.1, render_mode=None):
        self.speed, self.render_mode = speed, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(0.0, 2.0, 3)
        return self.place.copy(), {}

    def step(self, action):
        Yard.steps.append(np.asarray(action).tolist())
        self.place = np.clip(self.place + self.speed * action[0], 0.0, 2.0)
        there = bool(self.place[0] > 1.95)
        return self.place.copy(), float(there), there, False, {"is_success": there, "far": self.place[0]}

    def render(self):
        image = np.zeros((30, 40, 3), dtype=np.uint8)
        image[:, : 1 + int(19 * self.place[0])] = 255
        return image

class Odd(Yard):  # its picture is `picture`
    picture = None
    def render(self):
        return self.picture

class Floats(Odd):
    picture = np.zeros((8, 8, 3))

class Transparent(Odd):
    picture = np.zeros((8, 8, 4), np.uint8)

def nearly(info):
    return info["far"] > 1.0

class Unlimited(Yard):
    action_space = gym.spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,))

def several():
    return gym.vector.SyncVectorEnv([Yard, Yard])

class Shown(gym.Env):  # its picture is in the observation; it has no render_mode
    observation_space = gym.spaces.Dict(
        pixels=gym.spaces.Box(0, 255, (4, 4, 3), np.uint8), arm=gym.spaces.Box(-1.0, 1.0, (2,))
    )
    action_space = gym.spaces.Box(0, 10, (1,), np.int64)
    metadata = {"render_modes": ["rgb_array"]}
    taken = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"pixels": np.full((4, 4, 3), 7, np.uint8), "arm": np.zeros(2, np.float32)}, {}

    def step(self, action):
        Shown.taken.append(int(action[0]))
        return *self.reset()[:1], 0.0, False, False, {"is_success": False}

gym.register("Yard-v0", entry_point=Yard, max_episode_steps=7)
gym.register("ShownYard-v0", entry_point=Shown, max_episode_steps=7)
"""


@pytest.fixture(autouse=True)
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "their_yard.py").write_text(YARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_ADDED", [])
    monkeypatch.setattr(gymnasium_envs, "DESCRIBED", {})
    yield
    sys.modules.pop("their_yard", None)
    for name in [name for name in gym.registry if "Yard" in name]:
        del gym.registry[name]


def test_it_keeps_the_contract() -> None:
    benchmark = vla_gym.from_gymnasium("their_yard:Yard-v0", "drive to the right", in_process=True)
    assert (benchmark.id, benchmark.action_dim, benchmark.state_dim) == ("Yard-v0", 2, 3)
    (task,) = benchmark.tasks
    assert (task.instruction, task.horizon, task.num_trials) == ("drive to the right", 7, 50)
    check_vla_env("Yard-v0")
    check_vla_env("Yard-v0", split="test")


@pytest.mark.processes
def test_it_runs_in_worker_processes() -> None:
    vla_gym.from_gymnasium("their_yard:Yard-v0", "drive to the right", trials=3)
    check_vla_env("Yard-v0", num_workers=2)


def test_actions_images_and_success_are_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    import their_yard

    vla_gym.from_gymnasium(
        their_yard.Yard, "go", their_yard.nearly, id="My-Yard", horizon=5, in_process=True, speed=0.5, state=False
    )
    envs = vla_gym.make_vec("My-Yard", 1, autoreset_mode="disabled", schedule="grid", image_size=20)
    obs, _ = envs.reset(options={"reset_mask": np.array([True]), "task_id": np.array([0]), "trial_id": np.array([2])})
    start = np.random.default_rng(2).uniform(0.0, 2.0, 3)
    assert set(obs) == {"image", "instruction"}
    assert obs["image"].shape == (1, 20, 20, 3)
    # -1 is the lower bound 0, 0.5 three quarters between -4 and 4.
    _, _, _, _, infos = envs.step(np.float32([[-1.0, 0.5]]))
    assert their_yard.Yard.steps[-1] == [0.0, 2.0]
    assert bool(infos["success"][0]) == (start[0] > 1.0)
    # 1 is the upper bound 2, and makes 2 x 0.5 of way: at 1.0 or farther.
    _, _, _, _, infos = envs.step(np.float32([[1.0, 0.0]]))
    assert infos["success"][0]
    envs.close()


def test_what_cannot_be_driven_is_said_at_once() -> None:
    with pytest.raises(BadValue, match="Gymnasium does not know 'Yord-v0'"):
        vla_gym.from_gymnasium("Yord-v0", "go")
    with pytest.raises(BadValue, match="must be a class or a function at the top of a module"):
        vla_gym.from_gymnasium(lambda: gym.make("CartPole-v1"), "go", horizon=5)
    with pytest.raises(BadValue, match="must be a Box with finite bounds, got Discrete"):
        vla_gym.from_gymnasium("CartPole-v1", "balance the pole")
    with pytest.raises(UnknownName, match="no key of the observation 'arm'"):
        vla_gym.from_gymnasium("their_yard:Yard-v0", "go", state="arm", id="Arm")
    import their_yard

    with pytest.raises(BadValue, match="must be a Box with finite bounds, got Box"):  # float32's largest is infinity
        vla_gym.from_gymnasium(their_yard.Unlimited, "go", horizon=5)
    with pytest.raises(BadValue, match=r"their_yard:several makes SyncVectorEnv, expected one gymnasium.Env"):
        vla_gym.from_gymnasium(their_yard.several, "go", horizon=5)
    with pytest.raises(BadValue, match="give horizon="):
        vla_gym.from_gymnasium(their_yard.Yard, "go")
    vla_gym.from_gymnasium("their_yard:Yard-v0", "go")
    vla_gym.from_gymnasium("their_yard:Yard-v0", "go")  # again: nothing changes
    with pytest.raises(BadValue, match="'Yard-v0' is taken by another environment"):
        vla_gym.from_gymnasium("their_yard:Yard-v0", "go elsewhere")


def test_an_image_that_cannot_be_used_is_refused_when_it_is_described() -> None:
    import their_yard

    for odd, got in (("Odd", "got object"), ("Floats", "got float64"), ("Transparent", r"\[8, 8, 4\]")):
        with pytest.raises(BadValue, match=f"their_yard:{odd} fails at reset.*{got}"):
            vla_gym.from_gymnasium(getattr(their_yard, odd), "go", horizon=5)


def test_a_success_key_that_info_lacks_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"their_yard:Yard-v0's first step has no 'suces' \(it has is_success, far\)"):
        vla_gym.from_gymnasium("their_yard:Yard-v0", "go", success="suces")


def test_the_vectors_of_a_dict_are_not_passed_over_in_silence() -> None:
    with pytest.raises(BadValue, match=r"which of arm is the state\? say state='arm', or state=False"):
        vla_gym.from_gymnasium("their_yard:ShownYard-v0", "go", image="pixels")
    assert not vla_gym.from_gymnasium("their_yard:ShownYard-v0", "go", image="pixels", state=False).state_dim


def test_a_state_is_scaled_where_it_has_bounds() -> None:
    space = gym.spaces.Box(np.float32([0, -np.inf]), np.float32([4, np.inf]))
    assert scaled_state(np.array([1.0, 7.0]), space).tolist() == [-0.5, 7.0]


def test_an_image_of_the_observation_needs_no_render_mode() -> None:
    vla_gym.from_gymnasium("their_yard:ShownYard-v0", "look", image="pixels", state="arm", in_process=True)
    envs = vla_gym.make_vec("ShownYard-v0", 1, image_size=16, autoreset_mode="disabled")
    obs, _ = envs.reset()
    assert obs["image"].shape == (1, 16, 16, 3)
    assert np.unique(obs["image"]).tolist() == [7]
    import their_yard

    # Of 0 to 10 the numbers 5.9 and 10 are the integers 6 and 10.
    for action in (0.18, 1.0):
        envs.step(np.float32([[action]]))
    assert their_yard.Shown.taken[-2:] == [6, 10]
    envs.close()
    with pytest.raises(UnknownName, match="no key of the observation 'pixel'"):
        vla_gym.from_gymnasium("their_yard:ShownYard-v0", "look", image="pixel", id="A", state=False)
    with pytest.raises(BadValue, match=r"must be uint8 \[H, W, 3\], got float32 \[2\]"):
        vla_gym.from_gymnasium("their_yard:ShownYard-v0", "look", image="arm", id="A", state=False)
    with pytest.raises(BadValue, match=r"ShownYard-v0 cannot be made with \{\}: .*render_mode"):
        vla_gym.from_gymnasium("their_yard:ShownYard-v0", "look", id="A")


def test_workers_import_the_module_that_registers_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    import their_yard

    benchmark = vla_gym.from_gymnasium("Yard-v0", "go", id="Plain")
    assert benchmark.simulator_kwargs["env"] == "their_yard:Yard-v0"
    assert gymnasium_envs._with_module(gym.spec("Pendulum-v1")) == "Pendulum-v1"
    monkeypatch.setattr(their_yard.Yard, "__module__", "__main__")
    with pytest.raises(BadValue, match="registered in the program itself"):
        vla_gym.from_gymnasium("Yard-v0", "go", id="Main")
