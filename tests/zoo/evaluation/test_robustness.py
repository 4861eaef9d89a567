"""`zoo.evaluate --robustness`: each axis is played once; table, record, picture, page and card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.launching import TINY
from vla_gym import registry
from vla_gym.errors import BadValue, MissingDependency, ServerFailed
from vla_gym.registry import Family
from zoo import evaluate
from zoo.evaluation.robustness import axes_of, robustness_table, shares
from zoo.evaluation.statistics import Rate
from zoo.hub.upload import repository_files
from zoo.runs.folder import RunFolder
from zoo.runs.report_page import run_page
from zoo.train import run as train

CHANGED = ("Toy-Reach-PRO-lan", "Toy-Reach-Plus-noise")
AXES = ("Toy-Reach", *CHANGED)


def absent(env_id: str, *, split: str = "train") -> Any:
    raise MissingDependency(f"{env_id} needs an archive")


@pytest.fixture(autouse=True)
def toy_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Family(build="vla_gym.adapters.toy:toy_benchmark", num_tasks=dict.fromkeys(CHANGED, 3))
    light = Family(build=f"{__name__}:absent", num_tasks={"Toy-Reach-Plus-light": 3})
    monkeypatch.setattr(registry, "_ADDED", [toy, light])


def test_axes_are_those_that_can_be_played_here() -> None:
    assert axes_of("toy-reach") == (
        ["toy-reach", *CHANGED],
        ["Toy-Reach-Plus-light: Toy-Reach-Plus-light needs an archive"],
    )
    with pytest.raises(BadValue, match=r"axes of .*LIBERO-Spatial.*, got --env MetaWorld-MT10"):
        axes_of("MetaWorld-MT10")


def test_a_budget_is_spread_evenly() -> None:
    assert shares(["a", "b", "c"], 8) == {"a": 3, "b": 3, "c": 2}
    assert shares(["a", "b"], None) == {"a": 50, "b": 50}
    with pytest.raises(BadValue, match="an episode for each of 3 axes, got --eval-episodes 2"):
        shares(["a", "b", "c"], 2)


def test_the_table_has_counts_intervals_and_the_change() -> None:
    rates = [Rate(label="LIBERO-Goal", successes=9, episodes=10), Rate(label="camera", successes=1, episodes=4)]
    assert robustness_table(rates).splitlines() == [
        "success    95 % interval      k/n     change  axis",
        "  90.0%    [59.6%, 98.2%]      9/10             LIBERO-Goal",
        "  25.0%    [4.6%, 69.9%]        1/4      -65.0  camera",
    ]


@pytest.mark.processes
def test_axes_end_in_one_record_which_page_and_card_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--algo", "ppo", "--env", "Toy-Reach", "-n", "100", "--eval-episodes", "3", "-f", str(tmp_path)]
    assert train([*flags, "-params", "n_steps:8", TINY, "--num-envs", "2", "--seed", "0"]) == 0
    run = tmp_path / "ppo" / "Toy-Reach_1"
    asked = ["-i", str(run), "--robustness", "--eval-episodes", "8", "--num-threads", "1"]
    measure, played = evaluate.measure, []

    def first_two(plan: Any, **kwargs: Any) -> Any:
        if len(played) == 2:
            raise ServerFailed("gone")
        played.append((plan.env, len(plan.episodes)))
        return measure(plan, **kwargs)

    monkeypatch.setattr(evaluate, "measure", first_two)
    with pytest.raises(ServerFailed):
        evaluate.run(asked)
    assert played == [("Toy-Reach", 3), ("Toy-Reach-PRO-lan", 3)]
    assert not (run / "robustness.json").exists()

    played.clear()
    assert evaluate.run(asked) == 0
    assert played == [("Toy-Reach-Plus-noise", 2)]  # the others were played before
    said = capsys.readouterr().out
    assert "not played: Toy-Reach-Plus-light: " in said
    record = json.loads((run / "robustness.json").read_text())
    assert [(axis["name"], axis["episodes"]) for axis in record["axes"]] == [
        (name, 3 - (name == AXES[2])) for name in AXES
    ]
    for axis in record["axes"]:
        solved = [episode["success_once"] for episode in record["results"][axis["name"]]["episodes"]]
        assert (axis["successes"], axis["episodes"]) == (sum(solved), len(solved))
    assert (run / "robustness.png").read_bytes().startswith(b"\x89PNG")
    assert not list(run.glob("*partial*"))

    page, card = run_page(RunFolder(run)), repository_files(RunFolder(run), "me/run", tmp_path)["README.md"].read_text()
    for axis in record["axes"]:
        assert axis["name"] in page.partition("<h2>Robustness</h2>")[2]
        rate = f"| {axis['success']:.1%} | {axis['low']:.1%} to {axis['high']:.1%} | {axis['successes']} of"
        assert f"| {axis['name']} {rate}" in card.partition("## Robustness")[2]

    monkeypatch.setattr(evaluate, "measure", measure)
    assert evaluate.run(["-i", str(run), "--robustness", "--eval-episodes", "3", "--num-threads", "1"]) == 0
    assert [axis["episodes"] for axis in json.loads((run / "robustness.json").read_text())["axes"]] == [1, 1, 1]
    assert json.loads((run / "robustness-1.json").read_text()) == record
    assert (run / "robustness-1.png").is_file()

    (run / "robustness.json").write_text(json.dumps({**record, "weights_sha256": "0" * 64}))
    assert "<h2>Robustness</h2>" not in run_page(RunFolder(run))
    assert "robustness.json" not in repository_files(RunFolder(run), "me/run", tmp_path)
