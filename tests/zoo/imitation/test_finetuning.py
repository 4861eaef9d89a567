"""What a fine-tuning run learns: one dataset or several."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.zoo.demonstrations.test_lerobot import shown
from tests.zoo.imitation.test_families import collect_demos
from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from zoo import sft
from zoo.algorithms.training_warnings import TrainingWarning
from zoo.cli.main import guarded
from zoo.config.algorithm_configs import SFTConfig
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.imitation import objective as imitation

pytest.importorskip("pyarrow")
ASKED = [
    "--env",
    "Toy-Reach",
    "--device",
    "cpu",
    "--seed",
    "0",
    "--batch-size",
    "8",
    "-n",
    "1",
    "--eval-episodes",
    "0",
]
TINY = ("-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect_demos(tmp_path_factory.mktemp("demos") / "toy")


def frames_learned(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, int]:
    """Fine-tune; the episodes and frames of its first line."""
    assert sft.run([*ASKED, *flags, *TINY]) == 0
    words = capsys.readouterr().out.split()
    return int(words[words.index("episodes,") - 1]), int(words[words.index("frames,") - 1])


def test_several_datasets_are_learned_together(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    others = collect_demos(tmp_path / "others")
    one, two = (frames_learned(capsys, "--dataset", str(folder)) for folder in (demos, others))
    both = frames_learned(capsys, "--dataset", str(demos), str(others))
    assert both == (one[0] + two[0], one[1] + two[1])
    first_of_each = frames_learned(capsys, "--dataset", str(demos), str(others), "--episodes", "1")
    assert first_of_each[0] == 2
    stored = [
        yaml.safe_load(Path(f"logs/sft/Toy-Reach_{number}/config.yml").read_text())["algo_kwargs"]["dataset"]
        for number in (1, 3)
    ]
    assert stored == [str(demos), [str(demos), str(others)]]
    assert SFTConfig(dataset=stored[1]).folders == (demos, others)


def test_what_comes_next_is_pasted_with_spaces_and_packages(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sft.run([*ASKED, "--dataset", str(demos), "-f", "my logs", "--gym-packages", "json", *TINY]) == 0
    *_, train, evaluate = (shlex.split(line) for line in capsys.readouterr().out.splitlines())
    assert train[3:] == [
        *("--gym-packages", "json", "--algo", "ppo", "--env", "Toy-Reach"),
        *("--policy", "my logs/sft/Toy-Reach_1/best"),
    ]
    assert evaluate[3:] == ["-i", "my logs/sft/Toy-Reach_1"]


def test_datasets_that_do_not_go_together_are_named(demos: Path) -> None:
    from zoo.imitation.finetuning import check_alike

    shown = read_dataset(demos)
    check_alike({Path("a"): shown, Path("b"): shown[:1]})
    large = replace(shown[0], images={"image": np.zeros((shown[0].length, 64, 64, 3), np.uint8)})
    with pytest.raises(
        BadValue, match="'b' and 'a' cannot be learned together: one has image 64x64x3, state"
    ):
        check_alike({Path("a"): shown, Path("b"): [large]})


def test_every_dataset_must_be_there(demos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(sft.run, [*ASKED, "--dataset", str(demos), "none"]) == 2
    assert "no folder 'none'" in capsys.readouterr().err


def test_a_dataset_of_another_rate_is_learned_with_a_warning(tmp_path: Path) -> None:
    from zoo.imitation.finetuning import check_rate

    toy = find_benchmark("Toy-Reach")  # ten steps a second
    for fps in (10, 20):
        LeRobotWriter(tmp_path / str(fps), {}, fps=fps).add([shown(2)], tried=1)
    check_rate(tmp_path / "10", toy)
    with pytest.warns(TrainingWarning, match="has 20 frames per second, the environment 10 steps"):
        check_rate(tmp_path / "20", toy)


def test_a_gradient_that_is_not_finite_ends_the_run(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    actual = imitation.imitation_loss
    monkeypatch.setattr(imitation, "imitation_loss", lambda *args: actual(*args) * float("nan"))
    assert guarded(sft.run, [*ASKED, "--dataset", str(demos), *TINY]) == 2
    assert "the gradient of update 1 is not finite" in capsys.readouterr().err
