"""Run folders with one damaged file: every command that reads them ends in its result or in one line.

What is damaged, where and how follows from a drawn number; `make fuzz` draws ten times as many.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import vla_gym
from tests.zoo.stand_ins import finished
from tests.zoo.test_fuzz import cases, check
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from zoo.config.run_config import RunConfig, to_plain
from zoo.runs.folder import create_run_folder
from zoo.runs.loggers import JsonLines
from zoo.runs.monitor import EvaluationFile, MonitorFile

ODD_VALUES: tuple[Any, ...] = (None, [], {}, "x", -1, 1e300, 10**30, "../x", [None], {"a": {}}, True)
ODD_TEXTS = (
    "",
    "null",
    "[1, 2]",
    "&a [*a]",
    "[" * 3000,
    "9" * 5000,
    "!!python/name:os.system",
    "{a: 1, a: 2}",
    "\x1b[2J",
)
COMMANDS_OF_RUNS = (
    ["train", "-n", "128", "--dry-run"],
    ["evaluate"],
    ["record_video"],
    ["push_to_hub", "me/run"],
    ["plan", "-n", "128"],
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


class Files(dict[str, bytes]):
    """Name -> content of the files of a run folder."""

    def __repr__(self) -> str:
        return f"{sorted(self)}"  # what Hypothesis shows of a failure


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A run folder of Toy-Reach."""
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
    return Files({str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()})


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that would start simulators or talk to the Hub end there."""

    def start(*args: object, **options: object) -> None:
        raise BadValue("started")

    monkeypatch.setattr("zoo.cli.open_agent.open_rollout", start)
    monkeypatch.setattr("zoo.hub.upload._send", start)


@pytest.mark.usefixtures("nothing_starts")
@cases(400)
@given(draw=st.randoms(use_true_random=True))
def test_a_run_folder_with_one_damaged_file(files: Files, draw: random.Random) -> None:
    command, *flags = draw.choice(COMMANDS_OF_RUNS)
    check([command, "-i", str(damaged_run(files, draw)), *flags], 0, 2)


@cases(40)
@given(draw=st.randoms(use_true_random=True))
def test_a_page_of_damaged_records(files: Files, draw: random.Random) -> None:
    run = damaged_run({name: content for name, content in files.items() if "/" not in name}, draw)
    (run / "report.html").touch()
    check(["report", "-i", str(run)], 0, 2)


def damaged_run(files: Mapping[str, bytes], draw: random.Random) -> Path:
    """Write a run folder of these files, one of them damaged, where the last one was."""
    folder = Path("run").absolute()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    name = draw.choice(sorted(files))
    (folder / name).write_bytes(damaged(files[name], draw))
    return folder


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A file's content, damaged in one of many ways."""
    kind, place = (
        draw.choice(["cut", "flip", "text", "value", "value", "zeros", "doubled"]),
        draw.randrange(len(content)),
    )
    if kind == "value":
        with contextlib.suppress(ValueError, yaml.YAMLError):
            value = yaml.safe_load(content.decode())
            if isinstance(value, dict):
                return json.dumps(replaced(value, draw)).encode()
    flipped = bytes([content[place] ^ (1 << draw.randrange(8))])
    return {
        "cut": content[:place],
        "flip": content[:place] + flipped + content[place + 1 :],
        "zeros": bytes(len(content)),
        "doubled": content + content,
    }.get(kind, draw.choice(ODD_TEXTS).encode())


def replaced(value: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """`value` with one part of it, at some depth, replaced or left out."""
    key = draw.choice([*value])
    part = value[key]
    if isinstance(part, dict) and part and draw.random() < 0.5:
        return {**value, key: replaced(part, draw)}
    if draw.random() < 0.5:
        return {**value, key: draw.choice(ODD_VALUES)}
    return {name: kept for name, kept in value.items() if name != key}
