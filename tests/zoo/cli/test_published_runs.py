"""A published protocol played for real, on an environment without a simulator."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mock_checkpoints import openvla
from vla_gym.errors import BadValue
from zoo import evaluate, train
from zoo.agents.agent import Agent
from zoo.cli import published_runs
from zoo.config import published as rows
from zoo.config.published import Figure, PublishedRow
from zoo.evaluation.protocol import EvaluationProtocol
from zoo.runs.shipped_agents import agents_folder
from zoo.training.run_plan import arithmetic_lines

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


class Planned(Exception):  # ends a command where it would play
    """What would be played."""

    def __init__(self, plan: Agent) -> None:
        self.plan = plan


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def play(plan: Agent, **_: object) -> None:
        raise Planned(plan)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published_runs, "measure", play)


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
        (["-params", "split:test"], "-params split"),
        (["-params", "instructions:{open the drawer: x}"], "-params instructions"),
        (["-params", "policy_kwargs:{temperature: 2.0}"], "-params policy_kwargs:{temperature}"),
        (["-params", "policy_kwargs:{family: openvla}"], "-params policy_kwargs:{family}"),
    ],
)
def test_what_the_row_decides_is_refused(argv: list[str], said: str) -> None:
    with pytest.raises(BadValue) as error:
        evaluate.run(["--published", "libero-oft-base", "--dry-run", *argv])
    assert str(error.value) == f"{said} is the protocol's, and --published libero-oft-base sets it; leave it out"


def test_a_bare_family_stands_for_the_recipes_checkpoint_and_its_model() -> None:
    name, parts = published_runs.acting_settings("ManiSkill-Plate25", "openvla-oft")
    assert name == "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Lora"
    assert parts == {"base": "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Main"}
    assert published_runs.acting_settings("ManiSkill-Plate25", "someone/else") == ("someone/else", {})


def test_the_plan_of_a_recipe_is_the_one_of_the_command() -> None:
    plan = published_runs.recipe_plan("ppo", "ManiSkill-Plate25", "openvla-oft")
    assert (plan.config.entry, plan.config.chunk) == ("ManiSkill-Plate25/openvla-oft", 8)
    assert (plan.batch.decisions, plan.batch.minibatches) == (2560, 4)


def test_the_dry_run_plans_the_suite_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.run(["--published", "libero-oft-grpo", "--env", "LIBERO-Goal", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "recipe       grpo LIBERO-Goal/openvla-oft" in out
    assert "environment  LIBERO-Goal" in out


def test_the_dry_run_tells_fresh_weights(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "--published",
        "libero-130-grpo",
        "--dry-run",
        "--policy",
        "nano",
        "-params",
        "policy_kwargs:{family: nano}",
    ]
    assert evaluate.run(asked) == 0
    assert "weights      nano, fresh" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
@pytest.mark.parametrize("policy", ["nano", str(agents_folder() / "sft" / "LIBERO-Goal")])
def test_a_policy_of_another_family_is_refused(policy: str, flags: list[str]) -> None:
    said = (
        f"--published libero-130-grpo plays openvla-oft, and '{policy}' is of family nano; give weights of openvla-oft"
    )
    with pytest.raises(BadValue, match=re.escape(said)):
        evaluate.run(["--published", "libero-130-grpo", "--policy", policy, *flags])


def test_the_dry_run_looks_at_the_users_weights(tmp_path: Path) -> None:
    folder = tmp_path / "RLinf-OpenVLAOFT-LIBERO-130"
    openvla(folder, ["libero_130_no_noops_trajall"])
    asked = ["--published", "libero-130-grpo", "--dry-run", "--policy"]
    assert evaluate.run([*asked, str(folder)]) == 0
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BadValue, match="lacks the shard model-00002-of-00003"):
        evaluate.run([*asked, str(folder)])
    half = tmp_path / "half"
    half.mkdir()
    for name in ("config.json", "dataset_statistics.json", "preprocessor_config.json", "tokenizer.json"):
        shutil.copyfile(folder / name, half / name)
    with pytest.raises(BadValue, match=r"lacks model\.safetensors"):
        train.run(["--published", "libero-130-grpo", "--dry-run", "--policy", str(half)])
    with pytest.raises(BadValue, match="neither a folder here nor a Hub id"):
        evaluate.run([*asked, str(tmp_path / "nowhere")])


def test_rounds_are_part_of_a_rollouts_product() -> None:
    plan = published_runs.recipe_plan("ppo", "MetaWorld-MT50", "pi0")
    assert any("8 rounds of 64 envs x 20 decisions: at most 10240 " in line for line in arithmetic_lines(plan))


def test_weights_that_were_not_published_are_trained_by_a_whole_command() -> None:
    with pytest.raises(BadValue, match="--published libero-pi0-grpo --env LIBERO-Goal"):
        rows.published_rows()["libero-pi0-grpo"].start_policy("LIBERO-Goal")
