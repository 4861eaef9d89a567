from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.zoo.evaluation.test_evaluator import episode, task
from vla_gym.registry import find_benchmark
from vla_gym.specs import Task
from zoo.config.evaluation import EvaluationProtocol
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import (
    evaluated_line,
    evaluation_metrics,
    evaluation_record,
    evaluation_table,
    protocol_line,
    with_split,
)


def record_of(episodes: list[EpisodeRecord], tasks: list[Task], **facts: object) -> dict[str, Any]:
    return evaluation_record(
        episodes,
        replace(find_benchmark("Toy-Reach"), tasks=tuple(tasks)),
        EvaluationProtocol(),
        env_id="E",
        env_protocol={"own_instructions": {}, "chunk": 8},
        actions="as it likes",
        seed=0,
        facts=facts,
    )


TASKS = [task("a", suite="one"), task("b", suite="two")]
EPISODES = [episode(0, 0, True), episode(0, 1, False), episode(1, 0, False)]


def test_the_table_has_counts_intervals_suites_and_both_means() -> None:
    lines = evaluation_table(EPISODES, TASKS, "the protocol").splitlines()
    assert lines[1].split() == ["50.0%", "[9.5%,", "90.5%]", "1/2", "a"]
    assert lines[2].split() == ["0.0%", "[0.0%,", "79.3%]", "0/1", "b"]
    assert [line.split()[-1] for line in lines[4:6]] == ["one", "two"]
    assert lines[6].split()[0] == "33.3%"
    assert lines[6].endswith("all episodes")
    assert lines[7].split()[0] == "25.0%"
    assert "task-weighted" in lines[7]
    assert lines[8].split() == ["25.0%", "suite-weighted", "mean", "of", "2", "suites"]
    assert lines[9] == "protocol: the protocol"


def test_suites_count_once_whatever_their_number_of_tasks() -> None:
    # three easy tasks solved, one hard task failed: 3/4 over tasks, (1 + 0) / 2 over suites
    tasks = [task("a", suite="easy"), task("b", suite="easy"), task("c", suite="easy"), task("d", suite="hard")]
    episodes = [episode(0, 0, True), episode(1, 0, True), episode(2, 0, True), episode(3, 0, False)]
    record = record_of(episodes, tasks)
    assert record["task_weighted_mean"] == 0.75
    assert record["suite_weighted_mean"] == 0.5


def test_a_long_benchmark_is_cut_and_says_so() -> None:
    tasks = [task(f"t{i}") for i in range(130)]
    table = evaluation_table([episode(i, 0, False) for i in range(130)], tasks, "p")
    assert "... and 90 tasks more" in table
    assert "0/130" in table


def test_the_record_is_json_and_keeps_every_episode() -> None:
    record = json.loads(json.dumps(record_of(EPISODES, TASKS, step=7)))
    assert record["env"] == "E"
    assert record["step"] == 7
    assert record["success"]["successes"] == 1
    assert [e["trial_id"] for e in record["episodes"]] == [0, 1, 0]
    assert record["tasks"][0]["low"] < 0.5 < record["tasks"][0]["high"]


def test_an_evaluation_while_training_is_a_line_and_numbers() -> None:
    assert evaluated_line(300, EPISODES[:2], kept=True) == (
        "       300 evaluated: success 50.0% [9.5%, 90.5%], 1 of 2, kept as best/"
    )
    assert evaluated_line(300, EPISODES[:2], kept=False).endswith("1 of 2")
    metrics = evaluation_metrics(EPISODES)
    assert metrics["eval/success_once"] == pytest.approx(1 / 3)
    assert metrics["eval/num_trajectories"] == 3


def line_of(episodes: list[EpisodeRecord], *, own_words: int = 0, **benchmark: Any) -> str:
    """The protocol line of episodes on `TASKS`."""
    facts = replace(find_benchmark("Toy-Reach"), **{"tasks": tuple(TASKS), "protocol": {}, **benchmark})
    return protocol_line("E", episodes, facts, chunk=8, actions="as it likes", own_words=own_words)


def test_the_protocol_line_names_what_a_rate_depends_on() -> None:
    assert line_of(EPISODES, split="test", start_kind="sampled start states (split test)") == (
        "E, 3 episodes = 3 of 6 sampled start states (split test) on 2 of 2 tasks, success at any step, "
        "horizon 10 steps, as it likes, chunk 8"
    )
    fast = line_of(EPISODES, protocol={"render_quality": "fast"})
    assert fast.endswith("as it likes, chunk 8, fast images, split train")
    both = line_of(EPISODES, protocol={"render_quality": "fast", "physics": "fast"})
    assert both.endswith("as it likes, chunk 8, fast images, fast physics, split train")
    told = line_of(EPISODES, own_words=2)
    assert told.endswith("as it likes, chunk 8, own words for 2 tasks, split train")


def test_a_protocol_line_names_its_split_once() -> None:
    assert with_split("a line", "test") == "a line, split test"
    assert with_split("sampled start states (split test)", "test") == "sampled start states (split test)"
    assert with_split("a line", None) == "a line"


def test_the_protocol_line_tells_rounds_from_start_states() -> None:
    twice = [replace(episode(0, trial, True), round=number) for trial in range(2) for number in range(3)]
    line = line_of(twice)
    assert line.startswith("E, 6 episodes = 3 rounds of 2 of 6 start states on 1 of 2 tasks, ")
    assert line.endswith("intervals by start state (its rounds are not independent), split train")
    once = line_of(EPISODES)
    assert once.startswith("E, 3 episodes = 3 of 6 start states on 2 of 2 tasks, ")
    assert "rounds" not in once
