from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import zoo
from vla_gym.errors import BadValue, LostRank
from zoo.cli.main import COMMANDS, guarded, main, report_error


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)


def test_a_typo_is_one_line_exit_code_2_and_fast() -> None:
    before = os.times()
    done = run("zoo.train", "--algo", "ppo", "--env", "LIBERO-Spatal")
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
        ("improve", ["--env", "Toy-Reach", "--dataset", "demos"]),
        ("optimize", ["--env", "Toy-Reach", "-n", "10"]),
    ],
)
def test_a_command_of_one_process_refuses_several(
    name: str, flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([name, *flags]) == 2
    expected = f"zoo.{name} runs in one process; a launcher's several are for zoo.train and zoo.sft"
    assert capsys.readouterr().err == f"error: rank 0: {expected}\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: {COMMANDS[name][0]}" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_says_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"vla-zoo {zoo.__version__}\n"


def test_the_console_script_lists_and_checks_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vla-zoo {zoo.__version__}\n"
    assert main(["--help"]) == 0
    assert "evaluate" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["trian"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err


def test_a_dry_run_prints_the_arithmetic_and_writes_nothing(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    flags = "-n 6400 --num-envs 8 -params chunk:4 n_steps:10 batch_size:32 n_epochs:3"
    assert main(["train", "--env", "Toy-Reach", "--dry-run", *flags.split()]) == 0
    printed = capsys.readouterr().out
    # 8 x 10 = 80 decisions of up to 4 steps = 320 steps; 80 / 32 -> 3 minibatches; 6400 / 320 = 20 updates.
    assert "8 envs x 10 decisions: at most 80 decisions, 320 simulator steps" in printed
    assert "3 epochs x at most 3 minibatches of 32" in printed
    assert "at least 20 updates" in printed
    assert main(["train", "--algo", "grpo", "--env", "Toy-Reach", "--dry-run", "-params", "group_size:4"]) == 0
    assert "groups of 4 episodes" in capsys.readouterr().out
    import os

    assert os.listdir() == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--device cud", "no device 'cud'"),
        ("--device cuda:99", "device 'cuda:99' is not here"),
        ("-f /proc/foo", "cannot write run folders under '/proc/foo'"),
        ("-f afile/logs", "cannot write run folders under 'afile/logs'"),
        ("-params on_worker_error:foo", "Known: raise, restart"),
        ("-params policy_kwargs:{greedy: foo}", "Known: likeliest, mean"),
        ("-params instructions:{foo: bar}", "no task of Toy-Reach 'foo'"),
        ("-params value_level:action", "needs a critic with an output for each step"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(
    flags: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").touch()
    flag, _, value = flags.partition(" ")
    assert main(["train", "--env", "Toy-Reach", "--dry-run", flag, value]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(("env", "extra"), [("MetaWorld/reach", "metaworld"), ("ManiSkill/PushCube", "maniskill")])
def test_a_simulator_that_is_not_installed_is_said_before_the_plan(
    env: str,
    extra: str,
    dry: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in ("metaworld", "mani_skill", "sapien"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["train", "--env", env, *dry]) == 2
    said = capsys.readouterr()
    assert "not installed here." in said.err
    assert said.err.endswith(f'Install with: pip install "vla-zoo[{extra}]"\n')
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train", "steps between checkpoints; 0: at the end (default: the recipe's, else a quarter of -n)"),
        ("train", "simulator steps, all envs together (default: the recipe's)"),
        ("train", "simulators side by side, of all processes together (default: the recipe's)"),
        ("train", "start states evaluated; 0: none (default: the recipe's)"),
        ("train", "start states of another split, e.g. test (default: the run's own)"),
        ("sft", "start states evaluated; 0: none (default: the recipe's)"),
        ("improve", "start states evaluated after each round; 0: none (default: the recipe's)"),
        ("serve", "what clients speak (default: openpi)"),
        ("compare", "with --policy: simulators side by side (default: 4)"),
    ],
)
def test_help_says_the_default(command: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert says in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_tensorboard_folder_that_cannot_be_is_refused_first(
    dry: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["train", "--env", "Toy-Reach", "-n", "64", "-tb", "file", *dry]) == 2
    printed = capsys.readouterr()
    assert printed.err == (
        f"error: cannot write TensorBoard's files under 'file/ppo': '{tmp_path}/file' is a file, no folder; give "
        "another -tb DIR\n"
    )
    assert printed.out == ""
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_errors_become_one_line_and_faults_of_ours_stay_visible(capsys: pytest.CaptureFixture[str]) -> None:
    def mistake(argv: Sequence[str]) -> int:
        raise BadValue("two\n  lines")

    def interrupted(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    def fault(argv: Sequence[str]) -> int:
        raise ZeroDivisionError

    assert guarded(mistake, []) == 2
    assert capsys.readouterr().err == "error: two lines\n"
    assert guarded(interrupted, []) == 130
    with pytest.raises(ZeroDivisionError):
        guarded(fault, [])


def test_a_crash_in_native_code_shows_where_it_came() -> None:
    program = "import os; from zoo.cli.main import guarded; guarded(lambda argv: os.abort(), [])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.stderr
    assert '"<string>", line 1 in <lambda>' in done.stderr


def test_a_home_that_cannot_be_written_is_no_matter_for_a_picture(tmp_path: Path) -> None:
    (home := tmp_path / "home").touch()  # no folder, so that root cannot write there either
    program = (
        "from zoo.cli.main import guarded\ndef draw(argv):\n    import matplotlib\n    return 0\nguarded(draw, [])"
    )
    environ = {name: value for name, value in os.environ.items() if name[:3] not in ("MPL", "XDG")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environ, "HOME": str(home)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("buffering", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_a_reader_that_leaves_early_is_no_fault(buffering: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, *buffering, "-m", "zoo.cli.main", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_broken_pipe_of_ours_stays_visible() -> None:
    def fail(argv: Sequence[str]) -> int:
        raise BrokenPipeError("a worker's")

    with pytest.raises(BrokenPipeError, match="a worker's"):
        guarded(fail, [])


def test_one_process_reports_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    report_error("no suite\n  of that name", every_rank=False)
    assert capsys.readouterr().err == "error: no suite of that name\n"


@pytest.mark.parametrize(("every_rank", "printed"), [(True, "error: rank 1: lost\n"), (False, "")])
def test_a_rank_names_itself_and_leaves_the_line_for_the_launcher(
    every_rank: bool,
    printed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
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
        (OSError(28, "No space left on device", "logs/x"), "'logs/x': No space left on device; free some space or"),
        (PermissionError(13, "Permission denied"), "Permission denied; change its permissions"),
        (MemoryError(), "not enough memory: an allocation failed; take smaller batches"),
        (RuntimeError("can't start new thread"), "no further thread may be started; raise the limit on processes"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9\nmore"), "not enough memory: [enf"),
    ],
)
def test_what_the_machine_refuses_is_one_line(error: Exception, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: Sequence[str]) -> int:
        raise error

    assert guarded(fail, []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {says}")


@pytest.mark.processes
@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["plan", "--env", "Toy-Reach"]])
def test_output_that_cannot_be_written_is_one_line(argv: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "zoo.cli", *argv], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    said = "what the command prints,? cannot be written: No space left on device; free some space or write elsewhere"
    assert re.fullmatch(f"error: (a file, or )?{said}\n", done.stderr)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--num-envs=--"], "--num-envs needs a value, got '--'"),
        (["-n--"], "-n/--n-timesteps"),  # empty up to Python 3.12, "--" from 3.13 on
        (["--gym-packages=--"], "--gym-packages needs a value"),
        (["--algo", ""], "--algo must not be empty"),
        (["--gym-packages", ""], "--gym-packages must not be empty"),
        (["--gym-packages", ".."], "'..' is no name of a module"),
        (["--policy", "a\udcff"], "is no UTF-8 text"),
        (["--num-threads", "1e30"], "--num-threads: must be in 1 .. 4096, got 1e30"),
        (["--num-envs", "1e6"], "--num-envs: must be in 1 .. 65536"),
        (["-n", "1e30"], "must be in 1 .. 1000000000000000"),
        (["--device", "tpu"], "no device 'tpu'"),
        (["--device", "cpu:1"], "no device 'cpu:1'"),
        (["x" * 5000], "unknown argument 'xxx"),
        (["--env-kwargs", "image_size:64"], "unknown argument '--env-kwargs', did you mean -params, with options"),
        (["--hyperparams", "n_steps:16"], "did you mean -params, which takes the same"),
        (["--trained-agent", "x.zip"], "did you mean -i RUN, which goes on with it, or --policy RUN, a new run"),
        (["--verbose", "1"], "unknown argument '--verbose': every update is a line, leave it out"),
        (["-optimize"], "did you mean python -m zoo.optimize?"),
        (["-params", "n_epochs:1e18"], "n_epochs must be at most 100000"),
        (["-params", "chunk:999999999999"], "chunk must be at most 10000"),
        (["-params", "learning_rate:{schedule: [x]}"], "no schedule"),
        (["-params", "gamma:" + "9" * 400], "too large for an integer"),
        (["-params", "save_freq:2020-13-45"], "save_freq must be a number, got '2020-13-45'"),
        (["-params", "chunk:!!int abc"], "is not valid YAML"),
        (["--push-to-hub", "../x"], "is no name of a Hub repository"),
        (["--push-to-hub", "me/x.git"], "is no name of a Hub repository"),
        (["--push-to-hub", f"me/{'x' * 97}"], "is no name of a Hub repository"),
        (["--track", "foo"], "no tracker 'foo'"),
    ],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_nonsense_is_refused_before_anything_starts(
    command: str,
    argv: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    dry = [] if command == "plan" else ["--dry-run"]
    assert main([command, "--env", "Toy-Reach", *dry, *argv]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert len(said.err) < 800
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_output_that_is_closed_is_no_fault(closed: Sequence[int]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zoo.cli.main", "--help"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: [os.close(number) for number in closed],
    )
    assert (done.returncode, done.stderr) == (0, "")
