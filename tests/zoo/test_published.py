"""`zoo.published`, and `--published` of `zoo.evaluate` and `zoo.train`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests import mock_checkpoints
from vla_gym.errors import BadValue, MissingDependency, UnknownName, VLAZooError
from vla_gym.registry import find_benchmark
from zoo import evaluate, published, train
from zoo.agents.agent import Agent
from zoo.config.evaluation import EvaluationProtocol
from zoo.evaluation import published as rows
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.published import (
    Figure,
    PublishedRow,
    comparison_lines,
    comparison_record,
    protocol_lines,
    published_rows,
)
from zoo.evaluation.reproduced import reproductions
from zoo.runs.lookup import agents_folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_it_lists_every_row_and_what_was_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    assert published.run([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in published_rows())
    assert f"0 of {len(published_rows())} rows reproduced here" in out
    assert published.run(["mt50-pi0-ppo"]) == 0
    assert "figure       very hard: 84 %" in capsys.readouterr().out
    with pytest.raises(UnknownName, match="Did you mean 'mt50-pi0-ppo'"):
        published.run(["mt50-pi0-pp"])


def test_the_dry_run_of_an_evaluation_prints_the_whole_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.run(["--published", "libero-130-grpo", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "sampled (do_sample true), temperature 1.6" in out
    assert "2 x 6,500 start states = 13,000 episodes" in out
    assert "512 steps, 15 settle steps (protocol rlinf)" in out
    assert "weights      RLinf/RLinf-OpenVLAOFT-LIBERO-130" in out
    assert "hardware     the source's: 8 GPUs" in out


def test_rows_of_flow_policies_draw_fresh_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.run(["--published", "libero-pi0-base", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "actions      from fresh noise in every decision" in out
    assert "deterministic" not in out
    assert {row.fresh_noise for row in published_rows().values() if row.family in ("pi0", "pi05")} == {True}
    reading = published_rows()["libero-pi0-base"].reading("LIBERO-Goal")
    assert reading["backbone_kwargs"]["eval_noise"] == "random"


def test_the_dry_run_of_a_training_run_names_row_weights_and_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.run(["--published", "mt50-pi0-ppo", "--dry-run", "--seed", "0"]) == 0
    out = capsys.readouterr().out
    assert "published    mt50-pi0-ppo: easy 92.1 %" in out
    assert "start        RLinf/RLinf-Pi0-MetaWorld-SFT: not cached" in out
    assert "hardware     the source's" in out


@pytest.mark.parametrize(
    ("command", "argv", "message"),
    [
        (evaluate, ["--published", "libero-130-grpo", "--temperature", "1"], "--temperature is the protocol's"),
        (evaluate, ["--published", "libero-130-grpo", "--env", "Toy-Reach"], "is of LIBERO-130, got --env Toy-Reach"),
        (evaluate, ["--dry-run", "--policy", "nano"], "give a row of vla-zoo published with it"),
        (train, ["--published", "libero-130-base"], "has no recipe here"),
        (train, ["--published", "mt50-pi05-flow-noise"], "or its source gives no settings"),
        (train, ["--published", "libero-pi0-ppo"], "say which with --env LIBERO-Spatial, LIBERO-Object"),
        (train, ["--published", "mt50-pi0-ppo", "--algo", "grpo"], "is --algo ppo, got grpo"),
        (train, ["--published", "mt50-pi0-ppo", "-i", "logs/x"], "begins a run, and -i logs/x goes on with one"),
        (train, ["--published", "mt50-pi0-ppo", "--policy", "nano"], "trains pi0, and 'nano' is read as nano"),
    ],
)
def test_what_contradicts_a_row_is_refused(command: object, argv: list[str], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        command.run(argv)  # type: ignore[attr-defined]


def test_boxes_are_not_compared_with_published_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MANISKILL_ASSET_DIR", raising=False)
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path))
    tiny = ["-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
    with pytest.raises(MissingDependency, match=r"published files are missing .* and stand_ins is false"):
        evaluate.run(["--published", "plate25-oft-base", "--policy", "openvla-oft", *tiny])


def test_a_dry_run_says_what_the_run_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "RLinf-OpenVLAOFT-LIBERO-130", [], in_config=[], size="tiny")
    assert evaluate.run(["--published", "libero-130-grpo", "--dry-run", "--policy", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"refused      '{folder}' has no action statistics" in out
    monkeypatch.delenv("MANISKILL_ASSET_DIR", raising=False)
    for name in ("MS_ASSET_DIR", "VLA_ZOO_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert evaluate.run(["--published", "plate25-oft-base", "--dry-run"]) == 0
    assert "stand_ins is false" in capsys.readouterr().out


def test_rows_without_weights_ask_for_yours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadValue, match=r"no weights of 'mt50-smolvla' .* give yours with -i RUN or --policy NAME"):
        evaluate.run(["--published", "mt50-smolvla"])
    assert evaluate.run(["--published", "libero-pi0-ppo", "--dry-run"]) == 0
    assert "vla-zoo train --published libero-pi0-ppo" in capsys.readouterr().out


ROW = PublishedRow(
    name="toy",
    model="a toy",
    source="nowhere",
    hardware="one core",
    protocol=EvaluationProtocol(sample=True, temperature=1.6, rounds=2),
    horizon=(12,),
    settle_steps=0,
    grid="3 tasks x 50 start states",
    figures=(
        Figure(label="all", percent=50.0, of=("Toy-Reach",)),
        Figure(label="average", percent=50.0, average="plain"),
    ),
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PublishedRow:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rows, "published_rows", lambda: {"toy": replace(ROW)})
    return ROW


@pytest.mark.usefixtures("toy")
def test_the_protocol_is_played_and_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert evaluate.run(["--published", "toy", "--policy", "nano", "--eval-episodes", "3", "--num-envs", "2"]) == 0
    out = capsys.readouterr().out
    assert "episodes     2 x 3 start states = 6 episodes on Toy-Reach (3 of its 150 start states)" in out
    assert "actions sampled at temperature 1.6" in out
    assert "/6  all      p = " in out
    record = json.loads((tmp_path / "results_toy.json").read_text())
    assert record["published"]["figures"][0]["episodes"] == 6
    assert record["results"]["Toy-Reach"]["rounds"] == 2
    with pytest.raises(BadValue, match="weights_sha256"):
        published.run(["--submit", "results_toy.json"])
    record["results"]["Toy-Reach"]["weights_sha256"] = "ab" * 32  # fresh weights have no file
    (tmp_path / "results_toy.json").write_text(json.dumps(record))
    assert published.run(["--submit", "results_toy.json"]) == 0
    (row,) = reproductions(tmp_path / "results")["toy"]
    assert row.figures["all"]["episodes"] == 6


class Planned(Exception):  # ends a command where it would play
    """What would be played."""

    def __init__(self, plan: Agent) -> None:
        self.plan = plan


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def play(plan: Agent, **_: object) -> None:
        raise Planned(plan)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "measure", play)


def plan_of(*argv: str) -> Agent:
    with pytest.raises(Planned) as planned:
        evaluate.run(["--env", "LIBERO-Goal", *argv])
    return planned.value.plan


@pytest.mark.usefixtures("planned")
def test_a_run_plays_the_published_protocol_and_not_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """It was trained in fast pictures from drawn start states; what its policy sees stays."""
    run = agents_folder() / "sft" / "LIBERO-Goal"  # type: ignore[operator]
    plan = plan_of("--published", "libero-oft-base", "-i", str(run))
    assert plan.env_options == {
        "chunk": 8,
        "image_size": 128,
        "wrist_camera": True,
        "protocol": "rlinf",
        "on_worker_error": "raise",
    }
    assert len(plan.start_states) == 10 * 50
    assert "besides" not in capsys.readouterr().out


@pytest.mark.usefixtures("planned")
def test_settings_stand_beside_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["env_kwargs:{render_quality: fast, sampled_starts: 2}", "policy_kwargs:{family: nano}", "image_size:64"]
    plan = plan_of("--published", "libero-oft-base", "--policy", "nano", "-params", *given)
    options = plan.env_options
    assert (options["protocol"], options["render_quality"], options["image_size"]) == ("rlinf", "fast", 64)
    out = capsys.readouterr().out
    assert "besides      {render_quality: fast, sampled_starts: 2}: yours, and not of the published protocol" in out
    assert "1 x 20 start states" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--top-k", "0"], "--top-k"),
        (["-params", "env_kwargs:{protocol: openvla-oft}"], "-params env_kwargs:{protocol}"),
        (["-params", "env_kwargs:{split: test}"], "-params env_kwargs:{split}"),
        (["-params", "policy_kwargs:{temperature: 2.0}"], "-params policy_kwargs:{temperature}"),
    ],
)
def test_what_the_row_decides_is_refused(argv: list[str], said: str) -> None:
    with pytest.raises(BadValue) as error:
        evaluate.run(["--published", "libero-oft-base", "--dry-run", *argv])
    assert str(error.value) == f"{said} is the protocol's, and --published libero-oft-base sets it; leave it out"


@pytest.mark.parametrize("policy", ["nano", str(agents_folder() / "sft" / "LIBERO-Goal")])
def test_a_policy_of_another_family_is_refused(policy: str) -> None:
    with pytest.raises(VLAZooError, match="openvla-oft"):
        evaluate.run(["--published", "libero-130-grpo", "--policy", policy])


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


def test_a_figure_of_several_environments_says_how_many_were_played() -> None:
    row = published_rows()["plate25-oft-ppo"]
    env = next(figure.of[0] for figure in row.figures if figure.label == "vision")
    lines = comparison_lines(row, {env: (played((0, True)), find_benchmark(env).tasks)})
    (vision,) = [line for line in lines if " vision " in line and "p = " in line]
    assert "1 of its 5 environments" in vision
    assert "not computed" in lines[-1]


def test_a_part_of_the_grid_is_said_to_be_one() -> None:
    row = published_rows()["libero-130-grpo"]
    whole = protocol_lines(row)
    assert "episodes     2 x 6,500 start states = 13,000 episodes on LIBERO-130 (all of it)" in whole
    assert "actions      sampled (do_sample true), temperature 1.6" in whole
    assert any("(20 of its 6,500 start states)" in line for line in protocol_lines(row, episodes=20))
    one = protocol_lines(published_rows()["libero-oft-grpo"], ["LIBERO-Long"])
    assert any("on LIBERO-Long (all of it)" in line for line in one)
