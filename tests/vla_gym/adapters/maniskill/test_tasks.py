"""ManiSkill's table: names, sentences, horizons, options. No simulator."""

from __future__ import annotations

import json

import pytest

from vla_gym.adapters.maniskill.tasks import TASKS, maniskill_benchmark
from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import check_instruction
from vla_gym.registry import find_benchmark, list_envs


def test_twelve_tasks_with_sentences_of_their_own() -> None:
    assert len(TASKS) == 12
    assert {f"ManiSkill/{name}" for name in TASKS} <= set(list_envs())
    sentences = [task.instruction for task in TASKS.values()]
    assert len(set(sentences)) == 12
    for sentence in sentences:
        check_instruction(sentence)


def test_horizons_are_upstreams() -> None:
    others = {
        "PegInsertionSide": 100,
        "PullCubeTool": 100,
        "StackPyramid": 250,
        "PlugCharger": 200,
        "RollBall": 80,
    }
    for name in TASKS:
        (task,) = find_benchmark(f"ManiSkill/{name}").tasks
        assert task.horizon == others.get(name, 50)


def test_all_share_one_space_and_some_have_a_wrist_camera() -> None:
    made = [find_benchmark(f"ManiSkill/{name}") for name in TASKS]
    assert {(b.action_dim, b.state_dim, b.default_image_size) for b in made} == {(7, 9, 128)}
    wrist = {b.tasks[0].name for b in made if "wrist_image" in b.cameras}
    assert wrist == {"StackCube", "PegInsertionSide", "StackPyramid", "PlugCharger"}


def test_the_action_is_declared_as_upstream_takes_it() -> None:
    benchmark = find_benchmark("ManiSkill/PickCube")
    spec = benchmark.action_spec
    assert (spec.rotation, spec.gripper, spec.frame) == ("euler_xyz", "plus_one_opens", "delta")
    assert "-0.1 rad" in str(benchmark.protocol["action"])
    assert json.loads(json.dumps(dict(benchmark.protocol)))["upstream_id"] == "PickCube-v1"


def test_splits_do_not_overlap() -> None:
    seeds = []
    for split in ("train", "test", "validation"):
        benchmark = maniskill_benchmark("ManiSkill/PickCube", split=split, task_seed=5)
        first = benchmark.simulator_kwargs["first_seed"]
        seeds.append(set(range(first, first + benchmark.tasks[0].num_trials)))
    assert min(seeds[0]) == 5
    assert len(set.union(*seeds)) == 3000


def test_the_protocol_says_which_physics() -> None:
    cpu, gpu = (maniskill_benchmark("ManiSkill/PickCube", physics=which) for which in ("cpu", "gpu"))
    assert (cpu.batched, gpu.batched) == (False, True)
    assert "on the CPU" in str(cpu.protocol["physics"])
    assert "on the GPU" in str(gpu.protocol["physics"])
    assert cpu.simulator_kwargs == gpu.simulator_kwargs  # the same start states


@pytest.mark.parametrize(
    ("env_id", "options", "error", "says"),
    [
        ("ManiSkill/PickCub", {}, UnknownName, "Did you mean 'ManiSkill/PickCube'"),
        ("ManiSkill/PickCube", {"split": "tset"}, UnknownName, "no split 'tset'.*Did you mean 'test'"),
        ("ManiSkill/PickCube", {"task_reward": "sparse"}, UnknownName, "Known: dense, success"),
        ("ManiSkill/PickCube", {"physics": "gup"}, UnknownName, "no physics 'gup'.*Did you mean 'gpu'"),
        ("ManiSkill/PickCube", {"task_seed": -1}, BadValue, "task_seed must be an integer in 0"),
        ("ManiSkill/PlugCharger", {"task_reward": "dense"}, BadValue, "no dense reward"),
    ],
)
def test_wrong_options_are_told(env_id: str, options: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        find_benchmark(env_id, **options)
