"""Protocols, and settings of evaluations during training: as flags, as `-params` and in a run's record."""

from __future__ import annotations

from typing import Any

import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo import sft, train
from zoo.cli.main import guarded
from zoo.cli.run_flags import resolve_new_run
from zoo.config.evaluation import EvaluationProtocol
from zoo.config.run_config import RunConfig, from_plain, to_plain
from zoo.sft import open_new_finetuning

TOY = ["--env", "Toy-Reach", "--seed", "0"]


def config(*argv: str) -> RunConfig:
    return resolve_new_run(train.parser().parse([*TOY, *argv]))


def test_without_a_word_evaluations_are_as_they_were() -> None:
    run = config()
    assert run.eval_options == {}
    assert (run.eval_env, run.eval_env_options) == ("Toy-Reach", run.env_options)
    assert (run.evaluation.sample, run.evaluation.rounds) == (False, 1)


def test_flags_say_where_and_how() -> None:
    where, how = (
        "--eval-env Toy-Reach/1 --eval-split test --eval-episodes 20",
        "--eval-temperature 1.6 --eval-top-k 50 --eval-rounds 2",
    )
    run = config(*where.split(), *how.split())
    assert (run.eval_env, run.eval_env_options["split"], run.env_options.get("split")) == ("Toy-Reach/1", "test", None)
    assert (run.evaluation.sample, run.evaluation.temperature, run.evaluation.top_k) == (True, 1.6, 50)
    assert run.evaluation.rounds == 2
    assert [task.name for task in run.evaluated_benchmark.tasks] == ["reach_green"]
    assert from_plain(to_plain(run), "config.yml") == run
    assert config("-params", "eval_split:test", "eval_rounds:3", "eval_stochastic:true").eval_options == {
        "eval_split": "test",
        "eval_rounds": 3,
        "eval_stochastic": True,
    }


def test_a_recipe_for_more_tasks_evaluates_all_start_states_of_fewer() -> None:
    assert config().eval_episodes == 150
    assert config("--eval-env", "Toy-Reach/1").eval_episodes == 50
    assert resolve_new_run(train.parser().parse(["--env", "Toy-Reach/1"])).eval_episodes == 50
    with pytest.raises(BadValue, match="more than the 50 start states"):
        resolve_new_run(train.parser().parse(["--env", "Toy-Reach/1", "-params", "eval_episodes:51"]))


def test_fine_tuning_takes_them_too() -> None:
    argv = [*TOY, "--dataset", "demos", "--eval-split", "test", "--eval-stochastic", "--eval-rounds", "2"]
    run = open_new_finetuning(sft.parser().parse(argv))[0]
    assert (run.eval_env_options["split"], run.evaluation.rounds, run.evaluation.sample) == ("test", 2, True)


def test_held_out_tasks_of_ml45() -> None:
    pytest.importorskip("metaworld")
    run = resolve_new_run(train.parser().parse(["--env", "MetaWorld-ML45", "--eval-env", "MetaWorld-ML45-test"]))
    held_out = {task.name for task in run.evaluated_benchmark.tasks}
    assert len(held_out) == 5
    other = ["--eval-env-kwargs", "protocol:lerobot"]
    longer = resolve_new_run(train.parser().parse(["--env", "MetaWorld-ML45", *other]))
    assert {task.horizon for task in longer.evaluated_benchmark.tasks} == {500}


@pytest.mark.parametrize("suite", ["Spatial", "Goal"])
def test_a_changed_suite_takes_what_options_it_knows(suite: str) -> None:
    pytest.importorskip("libero")
    changed = f"LIBERO-{suite}-PRO-swap"
    run = resolve_new_run(train.parser().parse(["--env", f"LIBERO-{suite}", "--eval-env", changed]))
    assert run.env_options["sampled_starts"] == 100
    assert {task.num_trials for task in run.evaluated_benchmark.tasks} == {50}
    assert run.evaluated_benchmark.render_quality == "fast"
    asked = ["--env", f"LIBERO-{suite}", "--eval-env", changed, "--eval-env-kwargs", "sampled_starts:5"]
    with pytest.raises(UnknownName, match=f"no option of {changed} 'sampled_starts'"):
        _ = resolve_new_run(train.parser().parse(asked)).evaluated_benchmark
    assert "sampled_starts" not in resolve_new_run(train.parser().parse(["--env", changed])).env_options


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--eval-env", "Toy-Reech"], "Did you mean 'Toy-Reach'?"),
        (["--eval-env", "LIBERO-Spatial"], "cannot evaluate a policy of Toy-Reach: numbers in an action are 7, not 2"),
        (["--eval-env", "Toy-Reach/1", "--eval-episodes", "51"], "more than the 50 start states of Toy-Reach/1"),
        (["--eval-rounds", "2"], "--eval-rounds 2 would play every start state 2 times alike"),
        (["--eval-temperature", "0"], "must be above 0"),
        (["--eval-env-kwargs", "protocol"], "--eval-env-kwargs wants key:value, got 'protocol'"),
        (["--eval-env-kwargs", "horizon:3"], "horizon"),
        (["--policy", "nano-flow", "--eval-temperature", "1"], "temperature is of action tokens"),
        (["-params", "eval_stochastic:false", "--eval-temperature", "1"], "these are to be deterministic"),
    ],
)
def test_what_cannot_be_evaluated(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(train.run, [*TOY, *argv, "--dry-run"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert says in line


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"temperature": 1.6}, "temperature and top_k are of sampled actions"),
        ({"top_k": 50}, "temperature and top_k are of sampled actions"),
        ({"sample": True, "temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"sample": True, "top_k": -1}, "top_k must be at least 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
    ],
)
def test_what_contradicts_itself(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        EvaluationProtocol(**fields)
