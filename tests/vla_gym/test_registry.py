from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from vla_gym import VLAVectorEnv, find_benchmark, gymnasium_id, list_envs, make_vec, register_benchmark
from vla_gym.errors import UnknownName, VLAZooError
from vla_gym.registry import canonical_id, num_tasks, option_names


def test_the_ids_of_the_contract_are_listed() -> None:
    listed = list_envs()
    assert listed == sorted(set(listed))
    suites = ("Spatial", "Object", "Goal", "Long", "10", "90", "130")
    assert {"Toy-Reach", *(f"LIBERO-{suite}" for suite in suites)} <= set(listed)


def test_options_go_to_the_family() -> None:
    assert len(find_benchmark("Toy-Reach").tasks) == num_tasks("Toy-Reach")
    assert [task.instruction for task in find_benchmark("Toy-Reach/2").tasks] == ["reach the blue block"]
    assert find_benchmark("Toy-Reach", split="test").simulator_kwargs == {"split": "test"}
    assert [option_names(name) for name in ("Toy-Reach", "toy-reach/2")] == [("split", "max_episode_steps")] * 2
    with pytest.raises(UnknownName, match="no environment 'Toy-Rich'"):
        option_names("Toy-Rich")
    with pytest.raises(UnknownName, match=r"no option of Toy-Reach 'spilt'.*Did you mean 'split'"):
        find_benchmark("Toy-Reach", spilt="test")
    with pytest.raises(UnknownName, match=r"no split 'tset'.*Did you mean 'test'"):
        find_benchmark("Toy-Reach", split="tset")


def test_episodes_of_another_length() -> None:
    benchmark = find_benchmark("Toy-Reach", max_episode_steps=5)
    assert [task.horizon for task in benchmark.tasks] == [5, 5, 5]
    assert benchmark.protocol["max_episode_steps"] == 5
    assert [task.horizon for task in find_benchmark("Toy-Reach/1", max_episode_steps=7).tasks] == [7]
    envs = make_vec("Toy-Reach", chunk=3, max_episode_steps=5)
    envs.reset(seed=0)
    still = np.zeros(envs.action_space.shape, np.float32)
    ends = [envs.step(still)[2:4] for _ in range(2)]
    envs.close()
    assert [(bool(terminated), bool(truncated)) for terminated, truncated in ends] == [(False, False), (False, True)]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("Toy-Rich", "Toy-Reach"),
        ("libero-spatal", "LIBERO-Spatial"),
        ("LIBERO-Spacial/3", "LIBERO-Spatial"),
        ("Toy-Reach/3", "Toy-Reach/2"),
        ("Toy-Reach/", "Toy-Reach/0"),
        ("Toy-Reach/-1", "Toy-Reach/0"),
    ],
)
def test_a_wrong_id_names_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{hint}'"):
        find_benchmark(wrong)


@pytest.mark.parametrize(
    ("written", "listed"),
    [
        ("libero-spatial", "LIBERO-Spatial"),
        ("libero-spatial/03", "LIBERO-Spatial/03"),
        ("METAWORLD/Reach", "MetaWorld/reach"),
        ("no-such/3", "no-such/3"),
    ],
)
def test_the_case_of_an_id_does_not_matter(written: str, listed: str) -> None:
    assert canonical_id(written) == listed


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove afterwards the ids that a test registers."""
    monkeypatch.setattr("vla_gym.registry._ADDED", [])
    before = set(gym.registry)
    yield
    for name in set(gym.registry) - before:
        del gym.registry[name]


@pytest.mark.usefixtures("forget")
def test_a_benchmark_of_one_s_own() -> None:
    for _ in range(2):  # a module that is imported twice does no harm
        register_benchmark("scripted_simulator:named", {"Mine": 3, "Mine/one": 1}, aliases={"My-Other": "Mine"})
    assert {"Mine", "Mine/one", "My-Other"} <= set(list_envs())
    assert gymnasium_id("Mine/2") in gym.registry
    assert num_tasks("My-Other") == 3
    assert find_benchmark("Mine/2").tasks[0].name == "task_2"
    with pytest.raises(UnknownName, match=r"no option of Mine 'splt'.*Did you mean 'split'"):
        find_benchmark("Mine", splt="test")
    with pytest.raises(UnknownName, match="Did you mean 'Mine'"):
        find_benchmark("Mien")
    envs = make_vec("Mine", 2, chunk=5, num_workers=1)
    obs, _ = envs.reset(seed=0)
    assert obs in envs.observation_space
    envs.close()


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    ("build", "counts", "aliases", "message"),
    [
        ("a:b", {"Toy-Reach": 3}, {}, "'Toy-Reach' is taken"),
        ("a:b", {"New": 1}, {"LIBERO-10": "New"}, "'LIBERO-10' is taken"),
        ("a.b", {"New": 1}, {}, "entry point 'module:function', got 'a.b'"),
        ("a:b", {"New id": 1}, {}, "'New id' is not allowed"),
        ("a:b", {"New/3": 1}, {}, "'New/3' is not allowed"),
        ("a:b", {"New": 1}, {"Old": "Nwe"}, "no id for the alias 'Old' 'Nwe'.*Did you mean 'New'"),
    ],
)
def test_what_cannot_be_registered(build: str, counts: dict[str, int], aliases: dict[str, str], message: str) -> None:
    with pytest.raises(VLAZooError, match=message):
        register_benchmark(build, counts, aliases=aliases)
    assert "New" not in list_envs()


def test_every_id_is_registered() -> None:
    for env_id in list_envs():
        spec = gym.spec(gymnasium_id(env_id))
        assert spec.id == f"vla_gym/{env_id.replace('/', '.')}-v0"
        assert spec.kwargs == {"env_id": env_id}
        assert spec.vector_entry_point == "vla_gym.make:make_vec"


def test_make_vec() -> None:
    envs = gym.make_vec("vla_gym/Toy-Reach-v0", num_envs=2, chunk=3, group_size=2)
    assert isinstance(envs, VLAVectorEnv)
    assert (envs.num_envs, envs.chunk) == (2, 3)
    obs, infos = envs.reset(seed=0)
    assert obs in envs.observation_space
    assert infos["start_state"][0] == infos["start_state"][1]
    assert envs.spec is not None
    assert envs.spec.id == "vla_gym/Toy-Reach-v0"
    envs.close()


def test_make_and_gymnasium_s_own_check() -> None:
    env = gym.make("vla_gym/Toy-Reach-v0", render_mode="rgb_array", chunk=2)
    env.reset(seed=0)
    env.action_space.seed(0)  # some actions reach the block at once
    assert env.render().shape == (32, 32, 3)  # type: ignore[union-attr]
    assert env.step(env.action_space.sample())[4]["executed"] == 2
    with pytest.warns(UserWarning, match="infinity"):
        check_env(gym.make("vla_gym/Toy-Reach-v0").unwrapped)


def test_gymnasium_s_own_vectorisation_tells_each_slot_its_own_text() -> None:
    envs = gym.make_vec("vla_gym/Toy-Reach-v0", num_envs=2, vectorization_mode="sync", encoding="text")
    obs, infos = envs.reset(seed=[0, 1])
    for text, said, task_id in zip(obs["instruction"], infos["instruction"], infos["task_id"], strict=True):
        assert text == ("reach the red block", "reach the green block", "reach the blue block")[task_id] == said
    envs.step(np.zeros((2, 1, 2), dtype=np.float32))
    envs.close()
