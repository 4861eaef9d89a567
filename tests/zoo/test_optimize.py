from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vla_gym.errors import BadValue
from zoo.cli import guarded
from zoo.optimize import Search, run


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Runs are not trained: a low clip range is good, and an odd seed costs a tenth. Returns what was run."""
    seen: list[tuple[float, int]] = []

    def success(self: Search, drawn: dict[str, Any], seed: int, folder: Path) -> float:
        seen.append((drawn["learning_rate"], seed))
        return 1.0 - drawn["clip_range"] - 0.1 * (seed % 2)

    monkeypatch.setattr(Search, "_run", success)
    return seen


def flags(tmp_path: Path, trials: int, *more: str) -> list[str]:
    base = ["--env", "Toy-Reach", "-n", "100", "-f", str(tmp_path), "--n-trials", str(trials)]
    return [*base, *more]


def test_the_best_trial_is_kept_and_said(
    tmp_path: Path, judged: list[tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flags(tmp_path, 12, "--n-seeds", "2")) == 0
    folder = tmp_path / "ppo" / "Toy-Reach_optimize"
    # 1 - 0.1 with seed 0 and 1 - 0.1 - 0.1 with seed 1.
    assert "best of 12 trials: 85.0% success" in capsys.readouterr().out
    assert yaml.safe_load((folder / "best.yml").read_text())["clip_range"] == 0.1
    rows = (folder / "trials.csv").read_text().splitlines()
    assert rows[0].startswith("trial,success,learning_rate")
    assert len(rows) == 13
    assert [seed for _, seed in judged] == [0, 1] * 12


def test_a_search_goes_on_with_fresh_draws(
    tmp_path: Path, judged: list[tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(flags(tmp_path, 2))
    run(flags(tmp_path, 4))
    assert "2 of 4 trials are done" in capsys.readouterr().out
    assert len({rate for rate, _ in judged}) == 4


def test_a_trial_that_failed_is_tried_again(
    tmp_path: Path, judged: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Search, drawn: dict[str, Any], seed: int, folder: Path) -> float:
        raise BadValue("zoo.train failed")

    with monkeypatch.context() as patch:
        patch.setattr(Search, "_run", fail)
        with pytest.raises(BadValue, match="failed"):
            run(flags(tmp_path, 1))
    assert run(flags(tmp_path, 1)) == 0
    assert len(judged) == 1
    folder = tmp_path / "ppo" / "Toy-Reach_optimize"
    assert len((folder / "trials.csv").read_text().splitlines()) == 2


def test_a_run_that_fails_says_its_own_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # What only the run itself can find out.
    monkeypatch.setattr(Search, "check", lambda self: None)
    assert guarded(run, flags(tmp_path, 1, "--", "--policy", "nanoo")) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "failed: error: " in line
    assert "Did you mean 'nano'" in line


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--env", "Toy-Reech"], "Did you mean 'Toy-Reach'"),
        (["--", "--bogus"], "unknown argument '--bogus'"),
        (["--", "--policy", "nanoo"], "Did you mean 'nano'"),
        (["--", "--num-envs", "1", "-conf", "no.yml"], "cannot read no.yml"),
        (["--", "--eval-episodes", "0"], "do not pass --eval-episodes 0"),
        (["--", "-f", "elsewhere"], "--log-folder after -- is not for trials: give it before --"),
        (["--", "--seed", "0"], "--seed after -- is not for trials: give --seed and --n-seeds before --"),
        (["--", "-params", "n_epochs:1"], "-conf FILE"),
    ],
)
def test_what_no_run_could_start_with_is_said_before_anything_is_written(
    tmp_path: Path, argv: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert guarded(run, flags(tmp_path, 1, *argv)) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert says in line
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="give --env and -n"):
        run(["--env", "Toy-Reach"])
