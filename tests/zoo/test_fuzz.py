"""Bad input of every kind, drawn at random: one line and exit code 2, nothing started, nothing left behind.

CI draws the same cases each time; `make fuzz` draws ten times as many, others each time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zoo.cli.main import main
from zoo.config.run_config import known_settings

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


TRAIN = ["--env", "Toy-Reach", "--dry-run"]
YAML_TEXT = st.one_of(
    st.sampled_from(
        [
            *("", "[1, 2]", "!!int x", "!!bool x", "&a [*a]", "{5: a}", "{a: 1, a: 2}", "[" * 3000, "9" * 5000),
            *("null", "true", "[]", "{}", "0x_", "2020-13-45", "1:60", ".nan", ".inf", "*x", "1e400", "-0", "~"),
            "!!python/name:os.system",
            *("{schedule: linear}", "{schedule: [x]}", "{schedule: linear, start: x}", "{backbone_kwargs: {size: 3}}"),
            *("{optimizer_kwargs: {betas: [1]}}", "{lora: {rank: -1}}", "'", '"', "\t", "a: b: c", "1_000", "1e3"),
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


@cases(50)
@given(data=st.data())
def test_settings_of_any_value(data: st.DataObject) -> None:
    algo = data.draw(st.sampled_from(["ppo", "grpo"]))
    key = data.draw(st.sampled_from([*known_settings(algo), "nothing", "", "gamma "]))
    pair = f"{key}:{data.draw(YAML_TEXT)}"
    check(["train", *TRAIN, "--algo", algo, "-params", pair], 0, 2)


@cases(50)
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
    check(["train", *TRAIN, "-conf", "x.yml"], 0, 2)
    check(["evaluate", "--env", "Toy-Reach", "--policy", "nano", "--instructions", "x.yml", "--eval-episodes", "0"], 2)
