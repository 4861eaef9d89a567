"""Bad input of every kind, drawn at random: one line and exit code 2, nothing started, nothing left behind.

CI draws the same cases each time; `make fuzz` draws ten times as many, others each time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vla_gym
from tests.zoo.stand_ins import finished
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import COMMANDS, main
from zoo.config.run_config import RunConfig, known_settings, to_plain
from zoo.runs.folder import RunFolder, create_run_folder
from zoo.runs.loggers import JsonLines
from zoo.runs.monitor import EvaluationFile, MonitorFile

TIMES = int(os.environ.get("VLA_ZOO_FUZZ", "1"))
"""How many times the cases of CI."""
MOST_SECONDS = 10.0
MOST_CHARACTERS = 2000


def cases(count: int) -> Any:
    """Decorator: draw so many cases, times `TIMES`."""
    return settings(
        max_examples=count * TIMES,
        deadline=None,
        database=None,
        derandomize=TIMES == 1,
        suppress_health_check=list(HealthCheck),
    )


def check(argv: list[str], *codes: int) -> str:
    """Call a command and hold it to what every bad input gets; returns what it printed as an error."""
    before = sorted(str(path) for path in Path().rglob("*"))
    out, err, began = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    said = err.getvalue()
    assert code in codes, (argv, code, said)
    assert time.process_time() - began < MOST_SECONDS, argv
    assert "Traceback" not in said, argv
    if code:
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, (argv, said)
        assert len(said.splitlines()) <= 3, (argv, said)
        assert len(lines[0]) <= MOST_CHARACTERS, argv
        assert lines[0].isprintable(), argv
    assert sorted(str(path) for path in Path().rglob("*")) == before, argv
    return said


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path_factory.mktemp("fuzz")
    monkeypatch.chdir(folder)
    return folder


# Flags ------------------------------------------------------------------------------------------------

PARSERS: Mapping[str, OneLineParser] = {
    name: import_module(module).parser()
    for name, (module, _) in COMMANDS.items()
    if hasattr(import_module(module), "parser")
}
NO_NUMBER = st.one_of(
    st.sampled_from(["", "x", "nan", "inf", "-1", "1.5", "1e30", "1e400", "0x10", "--", "[1]", "1,2", "9" * 5000]),
    st.text(alphabet="xyz[]{}#!%é ", min_size=1, max_size=30),
)
NO_NAME = st.one_of(
    st.sampled_from(
        ["", "x" * 5000, "../x", "~nouser/x", "a\x1b[31mb", "a\nb", "no such", "\udcff", "a\0b", "{}", "%s"]
    ),
    st.text(min_size=1, max_size=40).map(lambda text: f"no-{text}"),
)
NAMES = (
    "env",
    "algo",
    "policy",
    "run",
    "resume",
    "conf_file",
    "device",
    "gym_packages",
    "placement",
    "on_worker_error",
)
"""Flags that take one of some names, or something that is there."""
BASE: Mapping[str, list[str]] = {
    "train": ["--env", "Toy-Reach", "--dry-run"],
    "plan": ["--env", "Toy-Reach"],
    "sft": ["--env", "Toy-Reach", "--dataset", "nowhere"],
    "collect": ["--env", "Toy-Reach", "--expert", "-n", "1", "-o", "demos/x"],
    "evaluate": ["--env", "Toy-Reach", "--policy", "nano"],
    "enjoy": ["--env", "Toy-Reach", "--policy", "nano"],
    "record_video": ["--env", "Toy-Reach", "--policy", "nano"],
}


def wrong_flags() -> list[tuple[str, str, Any]]:
    """Every (command, flag, strategy of values that it must refuse)."""
    found = []
    for command in BASE:
        for action in PARSERS[command]._actions:
            if not action.option_strings or action.nargs == 0:
                continue
            flag = max(action.option_strings, key=len)
            numeric = getattr(action.type, "__qualname__", "").startswith("integer_in")
            if action.choices or action.dest in NAMES:
                found.append((command, flag, NO_NAME))
            elif numeric:
                found.append((command, flag, NO_NUMBER))
    return found


@cases(1200)
@given(data=st.data())
def test_one_wrong_flag(data: st.DataObject) -> None:
    command, flag, values = data.draw(st.sampled_from(WRONG))
    value = data.draw(values)
    with contextlib.suppress(ValueError, OverflowError):  # drawn text that is a count after all
        if values is NO_NUMBER and float(value) == int(float(value)) and 0 <= float(value) < 1e9:
            return
    said = check([command, *BASE[command], f"{flag}={value}"], 2)
    assert "started" not in said


WRONG = wrong_flags()


@cases(150)
@given(command=st.sampled_from([*COMMANDS]), words=st.lists(NO_NAME, min_size=1, max_size=4))
def test_words_that_are_no_flags(command: str, words: list[str]) -> None:
    with contextlib.suppress(argparse.ArgumentError):
        check([command, "--no-such-flag", *words], 2)


# Settings ---------------------------------------------------------------------------------------------

YAML_TEXT = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "null",
                "true",
                "[]",
                "{}",
                "[1, 2]",
                "!!int x",
                "!!bool x",
                "0x_",
                "2020-13-45",
                "1:60",
                ".nan",
                ".inf",
            ),
            *(
                "&a [*a]",
                "*x",
                "{5: a}",
                "{a: 1, a: 2}",
                "[" * 3000,
                "9" * 5000,
                "1e400",
                "-0",
                "!!python/name:os.system",
            ),
            *("{schedule: linear}", "{schedule: [x]}", "{schedule: linear, start: x}", "{backbone_kwargs: {size: 3}}"),
            *("{optimizer_kwargs: {betas: [1]}}", "{lora: {rank: -1}}", "~", "'", '"', "\t", "a: b: c", "1_000", "1e3"),
        ]
    ),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ).map(json.dumps),
)


@cases(350)
@given(command=st.sampled_from(["train", "plan"]), data=st.data())
def test_settings_of_any_value(command: str, data: st.DataObject) -> None:
    algo = data.draw(st.sampled_from(["ppo", "grpo"]))
    key = data.draw(st.sampled_from([*known_settings(algo), "nothing", "", "gamma "]))
    pair = f"{key}:{data.draw(YAML_TEXT)}"
    check([command, *BASE[command], "--algo", algo, "-params", pair], 0, 2)


@cases(150)
@given(data=st.data())
def test_a_file_of_recipes_of_any_content(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(["Toy-Reach/nano", "default/nano", "5", "x"]))
    text = data.draw(
        st.one_of(
            YAML_TEXT,
            YAML_TEXT.map(lambda value: f"{key}: {value}"),
            YAML_TEXT.map(lambda value: f"{key}: {{source: x, n_timesteps: 9, learning_rate: {value}}}"),
        )
    )
    Path("x.yml").write_bytes(text.encode("utf-8", "surrogatepass"))
    check(["train", *BASE["train"], "-conf", "x.yml"], 0, 2)
    check(["evaluate", *BASE["evaluate"], "--instructions", "x.yml", "--eval-episodes", "0"], 2)


# Run folders ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Name -> content of the files of a run folder of Toy-Reach."""
    run = create_run_folder(tmp_path_factory.mktemp("run"), "ppo", "Toy-Reach")
    config = RunConfig(algo="ppo", env="Toy-Reach", policy="nano", n_timesteps=64, num_envs=2, seed=0)
    (run.path / "config.yml").write_text(yaml.safe_dump(to_plain(config)))
    (run.path / "args.yml").write_text("gym_packages: []\n")
    (run.path / "command.txt").write_text("python -m zoo.train\n")
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, num_workers=0)
    (run.path / "protocol.json").write_text(json.dumps(envs.protocol()))
    view = envs.as_sb3()
    VLAPolicy(
        view.observation_space,
        view.action_space,
        lambda _: 1e-3,
        backbone="nano",
        backbone_kwargs={"size": "tiny"},
        action_spec=envs.benchmark.action_spec,
    ).save_pretrained(run.best)
    envs.close()
    (run.best / "score.json").write_text(json.dumps({"success": 0.5, "num_timesteps": 64}))
    monitor, metrics = MonitorFile(run.path, "Toy-Reach"), JsonLines(run.path)
    for step in (32, 64):
        monitor.add(finished(1.0, 12, task_id=1), step)
        metrics.write({"env/return": 1.0, "train/loss": 0.5}, {}, step)
        EvaluationFile(run.path, keep_until=step).add(step, [1.0, 0.0], [12, 20], [True, False])
    monitor.close()
    metrics.close()
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def changed(content: bytes, data: st.DataObject) -> bytes:
    """A file's content, damaged in one of many ways."""
    kind = data.draw(st.sampled_from(["cut", "flip", "text", "value", "value", "zeros", "doubled"]))
    place = data.draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut":
        return content[:place]
    if kind == "flip" and content:
        return content[:place] + bytes([content[place] ^ (1 << data.draw(st.integers(0, 7)))]) + content[place + 1 :]
    if kind == "zeros":
        return bytes(len(content))
    if kind == "doubled":
        return content + content
    if kind == "value":
        with contextlib.suppress(ValueError, yaml.YAMLError, UnicodeDecodeError):
            value = yaml.safe_load(content.decode())
            if isinstance(value, dict) and value:
                odd = data.draw(
                    st.sampled_from([None, [], {}, "x", -1, 1e300, 10**30, "../x", [None], {"a": {}}, True])
                )
                return json.dumps(replaced(value, odd, data)).encode()
    return data.draw(YAML_TEXT).encode("utf-8", "surrogatepass")


def replaced(value: dict[str, Any], odd: object, data: st.DataObject) -> dict[str, Any]:
    """`value` with one part of it, at some depth, replaced or left out."""
    key = data.draw(st.sampled_from([*value]))
    if isinstance(value[key], dict) and value[key] and data.draw(st.booleans()):
        return {**value, key: replaced(value[key], odd, data)}
    if data.draw(st.booleans()):
        return {**value, key: odd}
    return {name: part for name, part in value.items() if name != key}


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that would start simulators or talk to the Hub end there."""

    def start(*args: object, **options: object) -> None:
        raise BadValue("started")

    monkeypatch.setattr("zoo.cli.open_agent.open_rollout", start)
    monkeypatch.setattr("zoo.hub.upload._send", start)


COMMANDS_OF_RUNS = (
    *(
        ["train", "-n", "128", "--dry-run"],
        ["evaluate"],
        ["record_video"],
        ["push_to_hub", "me/run"],
        ["plan", "-n", "128"],
    ),
)


@pytest.mark.usefixtures("nothing_starts")
@cases(200)
@given(data=st.data())
def test_a_run_folder_with_one_damaged_file(files: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    with whole_run(files) as run:
        (run.path / name).write_bytes(changed(files[name], data))
        command, *flags = data.draw(st.sampled_from(COMMANDS_OF_RUNS))
        check([command, "-i", str(run.path), *flags], 0, 2)


@pytest.mark.slow
@cases(40)
@given(data=st.data())
def test_a_page_of_damaged_records(files: dict[str, bytes], data: st.DataObject) -> None:
    names = [name for name in files if "/" not in name]
    name = data.draw(st.sampled_from(sorted(names)))
    with whole_run(files) as run:
        content = changed(files[name], data)
        (run.path / name).write_bytes(content)
        (run.path / "report.html").touch()
        check(["report", "-i", str(run.path)], 0, 2)


@contextlib.contextmanager
def whole_run(files: Mapping[str, bytes]) -> Iterator[RunFolder]:
    """Context manager with a fresh run folder of these files."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=Path().absolute().parent) as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield RunFolder(Path(folder))


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.train.run", lambda argv: 0)
    with pytest.raises(AssertionError):
        check(["train", "--env", "nothing"], 2)
    monkeypatch.setattr("zoo.train.run", lambda argv: np.zeros(3)[7])
    with pytest.raises(IndexError):
        check(["train"], 2)
