from __future__ import annotations

import csv
import os
import shlex
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from vla_gym.errors import BadValue, VLAZooError
from zoo.cli.main import guarded
from zoo.cli.run_flags import resolve_new_run
from zoo.optimize import Search, opened, read_space, run
from zoo.train import parser as train_parser

pytestmark = pytest.mark.processes


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
    (tmp_path / "space.yml").write_text("learning_rate: {low: 1.0e-5, high: 1.0e-3}\nclip_range: [0.1]\n")
    assert run(flags(tmp_path, 3, "--n-seeds", "2", "--space", str(tmp_path / "space.yml"))) == 0
    folder = tmp_path / "ppo" / "Toy-Reach_optimize"
    # 1 - 0.1 with seed 0 and 1 - 0.1 - 0.1 with seed 1.
    assert "best of 3 trials: 85.0% success" in capsys.readouterr().out
    assert yaml.safe_load((folder / "best.yml").read_text())["clip_range"] == 0.1
    rows = (folder / "trials.csv").read_text().splitlines()
    assert rows[0].startswith("trial,success,learning_rate")
    assert len(rows) == 4
    assert [seed for _, seed in judged] == [0, 1] * 3


def test_a_search_goes_on_with_fresh_draws(
    tmp_path: Path, judged: list[tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(flags(tmp_path, 2))
    run(flags(tmp_path, 4))
    assert "2 of 4 trials are done" in capsys.readouterr().out
    assert len({rate for rate, _ in judged}) == 4


OTHER_SETTINGS = {
    "policy was nano, is nano-flow": ["--", "--num-envs", "8", "--policy", "nano-flow"],
    "num_envs was 8, is 4. Go on with those, or take another -f DIR": ["--", "--num-envs", "4"],
    "space of clip_range was [0.1, 0.2, 0.3], is [0.1, 0.2, 0.4]": ["--space", "space.yml", "--", "--num-envs", "8"],
    "env_options.chunk was 4, is not set; ": ["--", "--num-envs", "8", "-conf", "recipe.yml"],
}


def test_a_search_with_other_settings_is_refused(
    cwd: Path, judged: list[tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("space.yml").write_text("learning_rate: {low: 1.0e-5, high: 1.0e-3}\nclip_range: [0.1, 0.2, 0.4]\n")
    Path("recipe.yml").write_text("default/nano: {source: s, num_envs: 8}\n")
    run(flags(cwd, 1, "--", "--num-envs", "8"))
    capsys.readouterr()
    for says, argv in OTHER_SETTINGS.items():
        assert guarded(run, flags(cwd, 1, *argv)) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert says in said.err
    assert len(judged) == 1


def test_what_decides_nothing_may_change(tmp_path: Path, judged: list[tuple[float, int]]) -> None:
    run(flags(tmp_path, 1))
    assert run(flags(tmp_path, 2, "--", "--num-threads", "1", "--device", "cpu", "-P")) == 0
    assert len(judged) == 2


def test_two_processes_share_a_study(tmp_path: Path, judged: list[tuple[float, int]]) -> None:
    """From its first moment on, and together they make the trials asked for, each at most one more."""
    children = []
    for _ in range(2):
        pid = os.fork()
        if not pid:
            code = 1
            with suppress(BaseException):
                code = guarded(run, flags(tmp_path, 5))
            os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
    rows = (tmp_path / "ppo" / "Toy-Reach_optimize" / "trials.csv").read_text().splitlines()
    assert 6 <= len(rows) <= 7


def test_the_next_command_trains_the_best_trial(
    tmp_path: Path, judged: list[tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = {"schedule": "linear", "start": 1e-3, "end": 1e-4}
    space = {"learning_rate": [schedule], "clip_range": [0.1, 0.2], "clip_range_vf": [None]}
    (tmp_path / "space.yml").write_text(yaml.safe_dump(space))
    run(flags(tmp_path, 1, "--space", str(tmp_path / "space.yml"), "--", "--num-envs", "8", "-P"))
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command[:2] == ["vla-zoo", "train"]
    args = train_parser().parse(command[2:])
    config = resolve_new_run(args)
    assert (args.progress, args.log_folder) == (True, str(tmp_path))
    assert (config.env, config.num_envs, config.n_timesteps, config.seed) == ("Toy-Reach", 8, 100, 0)
    best = yaml.safe_load((tmp_path / "ppo" / "Toy-Reach_optimize" / "best.yml").read_text())
    assert best == {name: config.algo_kwargs[name] for name in sorted(space)}
    assert (best["learning_rate"], best["clip_range_vf"]) == (schedule, None)
    with (tmp_path / "ppo" / "Toy-Reach_optimize" / "trials.csv").open() as file:
        (trial,) = csv.DictReader(file)
    assert yaml.safe_load(trial["learning_rate"]) == schedule


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


STAND_IN = """#!{python}
import signal, sys, time
from pathlib import Path

run = Path(sys.argv[sys.argv.index("-f") + 1]) / "ppo" / "Toy-Reach_1"
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), (run / "ended").touch(), sys.exit(0)))
run.mkdir(parents=True)
{then}
"""
"""In the place of Python, for a training."""


def replace_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str) -> Path:
    """Let every training be a `STAND_IN`; returns where the first one's run is."""
    program = tmp_path / "python"
    program.write_text(STAND_IN.format(python=sys.executable, then=then))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return tmp_path / "ppo" / "Toy-Reach_optimize" / "trial_0" / "ppo" / "Toy-Reach_1"


def test_a_run_that_was_stopped_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = "from zoo.runs.monitor import EvaluationFile\nEvaluationFile(run).add(99, [1.0], [9], [True])"
    folder = replace_training(monkeypatch, tmp_path, evaluated)
    assert guarded(run, flags(tmp_path, 1)) == 2
    assert capsys.readouterr().err == (
        f"error: '{folder}' was stopped before its last evaluation: the trial does not count; repeat the command\n"
    )


@pytest.mark.parametrize("which", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_a_signal_ends_the_training_too(
    which: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if signal.getsignal(which) is signal.SIG_IGN:
        pytest.skip(f"{which.name} is ignored here, as under nohup, and so it is by a search")
    folder = replace_training(monkeypatch, tmp_path, "time.sleep(60)")

    def send() -> None:
        while not folder.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), which)

    sender = threading.Thread(target=send)
    sender.start()
    assert guarded(run, flags(tmp_path, 1)) == 130
    sender.join()
    assert (folder / "ended").is_file()
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--", "--policy", "nanoo"], "Did you mean 'nano'"),
        (["--env", "MetaWorld/reach"], 'Install with: pip install "vla-zoo[metaworld]"'),
        (["--", "--eval-episodes", "0"], "do not pass --eval-episodes 0"),
        (["--", "-f", "elsewhere"], "--log-folder after -- is not for trials: give it before --"),
        (["--", "-params", "n_epochs:1"], "-conf FILE"),
    ],
)
def test_what_no_run_could_start_with_is_said_before_anything_is_written(
    tmp_path: Path, argv: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "metaworld", None)
    assert guarded(run, flags(tmp_path, 1, *argv)) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert says in line
    assert not list(tmp_path.iterdir())


def test_a_file_says_spans_and_choices(tmp_path: Path) -> None:
    file = tmp_path / "space.yml"
    file.write_text("learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}\nn_epochs: [1, 2]\n")
    assert read_space(file, "ppo") == {"learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}, "n_epochs": [1, 2]}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("learning_rat: [1.0e-3]\n", "learning_rate"),
        ("gamma: {low: 0.9, high: 1.5}\n", "gamma"),
        ("ent_coef: {low: 0.0, high: 0.1, log: true}\n", "ent_coef"),
        ("n_epochs: 3\n", "n_epochs"),
        ("chunk: [4, 8]\n", "chunk"),
    ],
)
def test_what_cannot_be_searched_is_named(tmp_path: Path, text: str, names: str) -> None:
    (tmp_path / "space.yml").write_text(text)
    with pytest.raises(VLAZooError, match=names):
        read_space(tmp_path / "space.yml", "ppo")


@pytest.mark.parametrize("damaged", [b"garbage" * 99, None])
def test_a_damaged_study_is_named_and_stays(damaged: bytes | None, tmp_path: Path) -> None:
    with opened(tmp_path / "what? {x}", "ppo Toy-Reach 100", seed=0) as study:
        study.tell(study.ask(), 0.5)
    file = tmp_path / "what? {x}" / "study.db"
    file.write_bytes(damaged or file.read_bytes().replace(b"COMPLETE", b"COMPLETO"))
    with pytest.raises(BadValue, match=r"study\.db"), opened(file.parent, "ppo Toy-Reach 100", seed=0):
        pass
    assert file.exists()
