"""The console script, exit codes, and what every command refuses before anything starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import zoo
from vla_gym import list_envs
from vla_gym.errors import BadValue, LostRank
from zoo.cli.main import COMMANDS, guarded, main, report_error


def test_a_typo_is_one_line_exit_code_2_and_fast() -> None:
    before = os.times()
    command = [sys.executable, "-m", "zoo.train", "--algo", "ppo", "--env", "LIBERO-Spatal"]
    done = subprocess.run(command, capture_output=True, text=True)
    after = os.times()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Did you mean 'LIBERO-Spatial'?" in done.stderr
    # Seconds of processor time: waiting for a busy machine does not count.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 3


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("collect", ["--env", "Toy-Reach", "--expert", "-n", "1", "-o", "demos"]),
        ("evaluate", ["--env", "Toy-Reach", "--policy", "nano"]),
        ("optimize", ["--env", "Toy-Reach", "-n", "10"]),
    ],
)
def test_a_command_of_one_process_refuses_several(
    name: str, flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([name, *flags]) == 2
    assert capsys.readouterr().err.startswith(f"error: rank 0: vla-zoo {name} runs in one process")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_a_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag, says in (("--help", f"usage: vla-zoo {name}"), ("--version", f"vla-zoo {zoo.__version__}\n")):
        with pytest.raises(SystemExit) as caught:
            main([name, flag])
        assert caught.value.code == 0
        assert says in capsys.readouterr().out


def test_the_console_script_lists_and_checks_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vla-zoo {zoo.__version__}\n"
    assert main(["--help"]) == 0
    assert "evaluate" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["trian"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err


def test_errors_become_one_line_and_faults_of_ours_stay_visible(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(error: BaseException) -> int:
        def run(argv: Sequence[str]) -> int:
            raise error

        return guarded(run, [])

    assert fails(BadValue("two\n  lines")) == 2
    assert capsys.readouterr().err == "error: two lines\n"
    assert fails(KeyboardInterrupt()) == 130
    for fault in (ZeroDivisionError(), BrokenPipeError("a worker's")):
        with pytest.raises(type(fault)):
            fails(fault)


def test_a_crash_in_native_code_shows_where_it_came() -> None:
    program = "import os; from zoo.cli.main import guarded; guarded(lambda argv: os.abort(), [])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.stderr
    assert '"<string>", line 1 in <lambda>' in done.stderr


def test_a_reader_that_leaves_early_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with subprocess.Popen(
        [sys.executable, "-m", "zoo.cli.main", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(("every_rank", "printed"), [(True, "error: rank 1: lost\n"), (False, "")])
def test_a_rank_names_itself_and_leaves_the_line_for_the_launcher(
    every_rank: bool, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "error.json"
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_ERROR_FILE", str(file))):
        monkeypatch.setenv(name, value)
    report_error("lost", every_rank=every_rank)
    assert capsys.readouterr().err == printed
    assert json.loads(file.read_text())["message"] == "lost"
    # The first reason is the one that counts.
    report_error("and then", every_rank=False)
    assert json.loads(file.read_text())["message"] == "lost"


def test_the_launcher_is_told_of_a_lost_rank_that_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: Sequence[str]) -> int:
        raise LostRank("another has not answered")

    file = tmp_path / "error.json"
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("TORCHELASTIC_ERROR_FILE", str(file))):
        monkeypatch.setenv(name, value)
    # Until then the launcher could still report the other's own message.
    monkeypatch.setattr("zoo.cli.main.time.sleep", lambda _: file.exists() and pytest.fail("told too early"))
    assert guarded(fail, []) == 2
    assert json.loads(file.read_text())["message"] == "another has not answered"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "No space left on device", "logs/x"), "'logs/x': No space left on device"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9\nmore"), "not enough memory"),
    ],
)
def test_what_the_machine_refuses_is_one_line(error: Exception, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: Sequence[str]) -> int:
        raise error

    assert guarded(fail, []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {says}")


REFUSED = [
    ("--device tpu", "--device"),
    ("--device cuda:99", "cuda:99"),
    ("--num-threads 1e30", "--num-threads"),
    ("--num-envs 1e6", "--num-envs"),
    ("-n 1e30", "--n-timesteps"),
    ("-f /proc/foo", "/proc/foo"),
    ("-tb afile", "afile"),
    ("--gym-packages ..", "'..'"),
    ("--policy a\udcff", "UTF-8"),
    (f"{'x' * 5000}", "xxx"),
    ("--env-kwargs image_size:64", "-params"),
    ("-optimize", "vla-zoo optimize"),
    ("--learning-rate 1e-4", "give -params learning_rate:VALUE"),
    ("--image-resolution 64", "give -params image_size:VALUE"),
    ("--total-timesteps 100", "give -n STEPS"),
    ("-params instructions:{foo: bar}", "'foo'"),
    (f"-params gamma:{'9' * 400}", "gamma"),
    ("--push-to-hub ../x", "../x"),
    ("--track foo", "'foo'"),
]
"""Flag and value -> what the line names."""


@pytest.mark.parametrize(("argument", "named"), REFUSED)
def test_nonsense_is_refused_before_anything_starts(
    argument: str, named: str, cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("afile").touch()
    flag, _, value = argument.partition(" ")
    assert main(["train", "--env", "Toy-Reach", "--dry-run", flag, *([value] if value else [])]) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert len(said.err) < 800
    assert [one.name for one in cwd.iterdir()] == ["afile"]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("enjoy --env Toy-Reach --render human", ": a window opens where there is a display, else"),
        ("enjoy --env Toy-Reach --wrist true", "give -params wrist_camera:VALUE"),
        ("evaluate --env Toy-Reach --learning-rate 1", "unknown argument '--learning-rate'"),
        ("envs Nowhere-At-All", "no environment 'Nowhere-At-All'"),
        ("runs -f nowhere", "no runs under 'nowhere'; vla-zoo train begins one"),
    ],
)
def test_a_flag_of_other_libraries_gets_the_one_of_ours(
    command: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert "-params learning_rate" not in line, "a policy that acts has none"


def test_ids_and_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "libero-goal"]) == 0
    goal, *perturbed = capsys.readouterr().out.splitlines()
    assert goal.split()[:3] == ["LIBERO-Goal", "10", "tasks"]
    assert all(line.startswith("LIBERO-Goal-") for line in perturbed)
    assert main(["envs"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(list_envs())
    shutil.copytree(Path(__file__).parents[1] / "version_0_1" / "run", tmp_path / "ppo" / "Toy-Reach_1")
    (tmp_path / "ppo" / "Toy-Reach_2").mkdir()
    (tmp_path / "ppo" / "Toy-Reach_2" / "config.yml").write_text("{")
    assert main(["runs", "-f", str(tmp_path)]) == 0
    whole, damaged = sorted(capsys.readouterr().out.splitlines())
    assert whole.startswith(f"{tmp_path}/ppo/Toy-Reach_1  Toy-Reach with nano, ")
    assert "checkpoints: " in whole
    assert f"{tmp_path}/ppo/Toy-Reach_2  cannot be read: " in damaged


def test_a_dry_run_prints_the_arithmetic_and_writes_nothing(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "-n 6400 --num-envs 8 -params chunk:4 n_steps:10 batch_size:32 n_epochs:3"
    assert main(["train", "--env", "Toy-Reach", "--dry-run", *flags.split()]) == 0
    printed = capsys.readouterr().out
    # 8 x 10 = 80 decisions of up to 4 steps = 320 steps; 80 / 32 -> 3 minibatches; 6400 / 320 = 20 updates.
    assert "8 envs x 10 decisions: at most 80 decisions, 320 simulator steps" in printed
    assert "3 epochs x at most 3 minibatches of 32" in printed
    assert "at least 20 updates" in printed
    assert main(["train", "--algo", "grpo", "--env", "Toy-Reach", "--dry-run", "-params", "group_size:4"]) == 0
    assert "groups of 4 episodes" in capsys.readouterr().out
    assert not list(cwd.iterdir())
