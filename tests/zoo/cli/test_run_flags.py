"""Flags become a run's configuration, or one line that says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vla_gym.errors import BadValue, VLAZooError
from zoo.cli.run_flags import check_services, resolve_new_run, resolve_resumed_run
from zoo.config.gym_packages import import_named_packages
from zoo.config.run_config import RunConfig
from zoo.runs.folder import create_run_folder, describe_run
from zoo.runs.lookup import ResumePoint
from zoo.runs.monitor import EvaluationFile
from zoo.train import parser
from zoo.training.run_plan import RunPlan


def resolve(command: str) -> RunConfig:
    args = parser().parse(command.split())
    check_services(args)
    config = resolve_new_run(args)
    RunPlan.resolve(config)
    return config


def test_flags_stand_above_params_and_params_above_the_file() -> None:
    config = resolve("--env Toy-Reach --num-envs 8 -n 1e3 -params num_envs:4 gamma:0.5 n_epochs:2 --seed 3")
    assert (config.num_envs, config.n_timesteps, config.seed) == (8, 1000, 3)
    assert (config.algo_kwargs["gamma"], config.algo_kwargs["n_epochs"]) == (0.5, 2)
    assert config.algo == "ppo"
    assert config.entry == "Toy-Reach/nano"


def test_policy_kwargs_are_merged_one_level_deep(tmp_path: Path) -> None:
    conf = tmp_path / "c.yml"
    conf.write_text(
        "default/nano: {source: s, n_timesteps: 8, num_envs: 2, policy_kwargs: {temperature: 1, top_k: 2}}\n"
    )
    config = resolve(f"--env Toy-Reach -conf {conf} -params policy_kwargs:{{'top_k':3}} --seed 0")
    assert config.policy_kwargs == {"temperature": 1, "top_k": 3}


def test_without_a_seed_one_is_drawn() -> None:
    first, second = resolve("--env Toy-Reach").seed, resolve("--env Toy-Reach").seed
    assert first != second


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "--env is missing"),
        ("--env Toy-Reach/9", r"Toy-Reach/0 \.\. Toy-Reach/2"),
        ("--env Toy-Reach --policy ./no/where", "no checkpoint folder"),
        ("--env Toy-Reach -params policy_kwargs:{'family':'foo'}", "got family='foo'"),
        ("--env Toy-Reach -params policy_kwargs:{'unnorm_key':'foo'}", "got unnorm_key='foo'"),
        ("--env Toy-Reach -params policy_kwargs:{'revision':'foo'}", "got revision='foo'"),
        ("--env Toy-Reach -params batch_size:1", "batch_size=1"),
        ("--env Toy-Reach --num-envs 1 -params n_steps:1", "n_steps x num_envs = 1"),
        ("--env Toy-Reach -params bc_coef:1 bc_dataset:[demos,./demos]", "bc_dataset names './demos' twice"),
        ("--env Toy-Reach -params env_kwargs:{'env_id':'x'}", "no option of Toy-Reach 'env_id'"),
        ("--env Toy-Reach -conf no.yml", "cannot read 'no.yml'"),
        ("--env Toy-Reach --eval-episodes 100000", "at most --eval-episodes 150"),
        ("--env Toy-Reach --eval-tasks Toy-Reach/1 --eval-episodes 51", "Toy-Reach/1; at most --eval-episodes 50"),
        ("--env Toy-Reach --eval-tasks MetaWorld/reach", "trained has none of its tasks"),
        ("--algo grpo --env Toy-Reach --num-envs 6 -params group_size:4", "Nearest allowed: --num-envs 4 or 8"),
        ("--env Toy-Reach --placement env=gpu", "'gpu'"),
        ("--env Toy-Reach --placement env=0,rollout=0,actor=1", "the run has 1 process"),
        ("--env Toy-Reach --max-staleness 1", "needs rollout ranks that do not learn"),
        ("--env Toy-Reach --pipeline-stages both", "--pipeline-stages: must be a number, got 'both'"),
        ("--env Toy-Reach -params rounds_per_update:2 n_steps:8", "rounds_per_update and n_steps are two ways"),
    ],
)
def test_every_mistake_is_named_in_one_line(command: str, message: str) -> None:
    with pytest.raises(VLAZooError, match=message) as caught:
        resolve(command)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "more", "policy"),
    [
        ("LIBERO-Goal", [], "agents/sft/LIBERO-Goal"),
        ("libero-goal", ["-params", "learning_rate:1.0e-5"], "agents/sft/LIBERO-Goal"),
        ("LIBERO-Goal", ["--policy", "nano"], "nano"),
        ("LIBERO-Goal", ["-params", "image_size:64"], "nano"),
        ("LIBERO-Goal", ["-params", "policy_kwargs:{temperature: 2}"], "nano"),
        ("LIBERO-Goal/1", [], "nano"),
        ("LIBERO-90", [], "nano"),
    ],
)
def test_training_starts_from_the_agent_that_comes_with_an_environment(env: str, more: list[str], policy: str) -> None:
    args = parser().parse(["--env", env, *more])
    import_named_packages(args)
    assert resolve_new_run(args).policy == policy


def test_without_agents_training_starts_from_fresh_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.cli.run_flags.find_agents", list)
    assert resolve_new_run(parser().parse(["--env", "LIBERO-Goal"])).policy == "nano"


def test_an_empty_policy_is_none() -> None:
    with pytest.raises(BadValue, match="--policy must not be empty"):
        resolve_new_run(parser().parse(["--env", "Toy-Reach", "--policy", ""]))


@pytest.fixture
def point(tmp_path: Path) -> ResumePoint:
    run = create_run_folder(tmp_path, "ppo", "Toy-Reach")
    config = resolve("--env Toy-Reach -n 1000 --seed 5")
    describe_run(run, config=config, args={}, command=["x"], protocol={})
    return ResumePoint(run=run, step=600, in_place=True)


def resume(point: ResumePoint, command: str) -> RunConfig:
    return resolve_resumed_run(parser().parse(command.split()), point)


def test_a_resumed_run_is_the_stored_one(point: ResumePoint) -> None:
    config = resume(point, "")
    assert config == point.run.config()
    assert config.seed == 5


def test_demonstrations_that_were_moved_are_missed_when_a_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "demos"
    run = create_run_folder(tmp_path, "ppo", "Toy-Reach")
    config = resolve(f"--env Toy-Reach -n 1000 -params bc_coef:0.1 bc_dataset:{folder}")
    describe_run(run, config=config, args={}, command=["x"], protocol={})
    point = ResumePoint(run=run, step=600, in_place=True)
    with pytest.raises(BadValue, match=r"\(bc_dataset\) are not in '.*demos' \(any more\); put them back there"):
        resume(point, "")
    folder.mkdir()
    assert resume(point, "").algorithm.bc_folders == (folder,)


def test_a_resumed_run_may_become_longer(point: ResumePoint) -> None:
    config = resume(point, "-n 5000 --save-freq 7 --num-threads 1 --env Toy-Reach")
    assert (config.n_timesteps, config.save_freq, config.num_threads) == (5000, 7, 1)


def test_a_run_whose_last_evaluation_was_given_up_goes_on_for_it(point: ResumePoint) -> None:
    done = replace(point, step=1000)
    assert resume(done, "").n_timesteps == 1000
    with pytest.raises(BadValue, match="has done 1000 of 1000 simulator steps already"):
        resume(replace(done, in_place=False), "")
    log = EvaluationFile(point.run.path)
    log.add(500, [1.0], [10], [True])
    assert resume(done, "-n 1000").n_timesteps == 1000
    log.add(1000, [1.0], [10], [True])
    with pytest.raises(BadValue, match="has done 1000 of 1000 simulator steps already"):
        resume(done, "")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("-n 600", "has done 600 of 600 simulator steps already"),
        ("--env LIBERO-Goal", "does not fit the run"),
        ("--algo grpo", "does not fit the run"),
        ("--num-envs 2", "--num-envs cannot change"),
        ("-params gamma:1", "--params cannot change"),
        ("--seed 0", "--seed cannot change"),
        ("--policy nano", "--policy cannot change"),
    ],
)
def test_what_would_make_it_another_run_is_refused(point: ResumePoint, command: str, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        resume(point, command)
