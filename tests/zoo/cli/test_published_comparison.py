"""Printed figures beside ours."""

from __future__ import annotations

from vla_gym.registry import find_benchmark
from zoo.cli.published_comparison import comparison_lines, comparison_record, protocol_lines
from zoo.config.published import published_rows
from zoo.evaluation.evaluator import EpisodeRecord


def played(*solved: tuple[int, bool]) -> list[EpisodeRecord]:
    return [
        EpisodeRecord(task_id=task, trial_id=i, success_once=won, success_at_end=won, total_reward=0.0, length=1)
        for i, (task, won) in enumerate(solved)
    ]


def test_each_figure_stands_beside_ours_with_its_exact_test() -> None:
    row = published_rows()["libero-130-grpo"]
    tasks = find_benchmark("LIBERO-130").tasks
    # Tasks 0 .. 9 are Spatial, 10 .. 19 Object: one of two, and none of one.
    measured = {"LIBERO-130": (played((0, True), (1, False), (10, False)), tasks)}
    lines = {line.split("  p =")[0].split()[-1]: line for line in comparison_lines(row, measured) if "p =" in line}
    assert "98.69%" in lines["Spatial"]
    assert "50.00%" in lines["Spatial"]
    assert "1/2" in lines["Spatial"]
    # 1 of 2 at 0.9869: 1 - 0.9869^2 = 0.026.
    assert "p = 0.026" in lines["Spatial"]
    assert "33.33%" in lines["130"]
    assert any("not played" in line and "Goal" in line for line in comparison_lines(row, measured))
    record = comparison_record(row, measured)
    spatial = next(figure for figure in record["figures"] if figure["label"] == "Spatial")
    assert (spatial["published"], spatial["successes"], spatial["episodes"]) == (98.69, 1, 2)


def test_averages_are_taken_as_their_table_takes_them() -> None:
    rows = published_rows()
    plate = rows["plate25-oft-ppo"]
    tasks = find_benchmark(plate.envs[0]).tasks
    measured = {env: (played((0, "Vision" in env), (0, True)), tasks) for env in plate.envs}
    average = comparison_lines(plate, measured)[-1]
    # vision 100, the others 50: (5 x 100 + 7 x 50 + 3 x 50 + 50) / 16 = 65.625.
    assert "65.62%" in average
    assert "77.05%" in average
    first = rows["plate25-v1-oft-ppo"]
    assert "not computed" in comparison_lines(first, measured)[-1]


def test_an_average_of_columns_that_were_not_all_played_is_not_computed() -> None:
    row = published_rows()["libero-oft-base"]
    measured = {env: (played((0, True)), find_benchmark(env).tasks) for env in row.envs}
    assert "100.00%" in comparison_lines(row, measured)[-1]
    del measured["LIBERO-Goal"]
    average = comparison_lines(row, measured)[-1]
    assert "not computed" in average
    assert "100.00%" not in average


def test_a_figure_of_several_environments_says_how_many_were_played() -> None:
    row = published_rows()["plate25-oft-ppo"]
    env = next(figure.of[0] for figure in row.figures if figure.label == "vision")
    lines = comparison_lines(row, {env: (played((0, True)), find_benchmark(env).tasks)})
    (vision,) = [line for line in lines if " vision " in line and "p = " in line]
    assert "1 of its 5 environments" in vision
    assert "not computed" in lines[-1]


def test_a_part_of_the_grid_is_said_to_be_one() -> None:
    row = published_rows()["libero-130-grpo"]
    whole = protocol_lines(row, {"LIBERO-130": 6500}, {"LIBERO-130": 6500})
    assert "episodes     2 x 6,500 start states = 13,000 episodes on LIBERO-130 (all of it)" in whole
    assert "actions      sampled (do_sample true), temperature 1.6" in whole
    part = protocol_lines(row, {"LIBERO-130": 20}, {"LIBERO-130": 6500})
    assert any("(20 of its 6,500 start states)" in line for line in part)
    suites = published_rows()["libero-oft-grpo"]
    one = protocol_lines(suites, {"LIBERO-Long": 500}, dict.fromkeys(suites.envs, 500))
    assert any("on LIBERO-Long (all of it)" in line for line in one)
