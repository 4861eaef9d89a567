from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.logger import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zoo.runs.loggers import JsonLines, ScreenTable, TensorBoard


def test_the_screen_shows_success_first_and_blanks_for_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = Logger(None, [ScreenTable("ppo")])
    logger.record("train/actor/approx_kl", 0.0123)
    logger.record("rollout/success_once", 0.25)
    logger.dump(512)
    logger.record("train/actor/approx_kl", float("nan"))
    logger.dump(1024)
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["steps", "success", "return"]
    assert first.split() == ["512", "25.0%", "1.2e-02"]
    assert second.split() == ["1024"]


def test_the_headings_come_again_and_fit_the_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    table = ScreenTable("grpo")
    for step in range(21):
        table.write({"train/loss": 0.0}, {}, step)
    headings = [line for line in capsys.readouterr().out.splitlines() if "steps" in line]
    assert len(headings) == 2
    assert "groups" in headings[0]
    assert "value" not in headings[0]


def test_what_is_no_update_makes_no_row_but_messages_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = Logger(None, [ScreenTable("ppo")])
    logger.record("eval/success_once", 1.0)
    logger.dump(1)
    logger.info("groups: abc 1/4")
    assert capsys.readouterr().out == "groups: abc 1/4\n"


def test_metrics_are_json_and_a_resume_drops_what_came_after(tmp_path: Path) -> None:
    first = JsonLines(tmp_path)
    for step in (10, 20, 30):
        first.write({"a": np.float32(0.5), "b": float("nan"), "c": "text", "d": np.int64(3)}, {}, step)
    first.close()
    path = tmp_path / "metrics.jsonl"
    assert json.loads(path.read_text().splitlines()[0]) == {"step": 10, "a": 0.5, "b": None, "d": 3}
    with path.open("a") as half:
        half.write('{"step": 31, "a"')
    second = JsonLines(tmp_path, keep_until=20)
    second.write({"a": 1.0}, {}, 25)
    second.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 25]


def test_tensorboard_hides_events_past_the_checkpoint(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        first.write({"a": float(step)}, {"a": ()}, step)
    first.close()
    second = TensorBoard(tmp_path, keep_until=20)
    second.write({"a": 0.0}, {"a": ()}, 25)
    second.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a")] == [(10, 10.0), (20, 20.0), (25, 0.0)]
