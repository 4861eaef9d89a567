"""Which sentence a frame is shown with, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.zoo.imitation.test_augmentation import Constant
from tests.zoo.launching import TOY
from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import decode_instruction, encode_instruction
from vla_policies.actions.noise import SlotNoise
from zoo import sft
from zoo.cli.main import guarded
from zoo.imitation.augmentation import Paraphrases, read_paraphrases

KNOWN = ("push it", "pull it")


def encoded(*sentences: str) -> Tensor:
    return torch.from_numpy(np.stack([encode_instruction(one) for one in sentences]))


def words(instruction_BL: Tensor) -> list[str]:
    return [decode_instruction(row) for row in instruction_BL.numpy()]


@pytest.fixture
def paraphrases(tmp_path: Path) -> Paraphrases:
    (tmp_path / "words.yml").write_text("pull it: [draw it]\npush it: [shove it, move it away]\n")
    return read_paraphrases(tmp_path / "words.yml", KNOWN)


@pytest.mark.parametrize(
    ("number", "push"),
    [(0.0, "push it"), (0.33, "push it"), (0.34, "shove it"), (0.67, "move it away"), (0.999999, "move it away")],
)
def test_all_choices_are_equally_likely_and_other_sentences_stay(
    number: float, push: str, paraphrases: Paraphrases
) -> None:
    shown = paraphrases.drawn(encoded("another", "push it", "pull it"), Constant(number))
    assert words(shown) == ["another", push, "pull it" if number < 0.5 else "draw it"]


def test_what_is_drawn_follows_from_seed_update_and_place(paraphrases: Paraphrases) -> None:
    whole = words(paraphrases.drawn(encoded(*["push it"] * 6), SlotNoise(3, (5, 0), np.arange(6))))
    later = words(paraphrases.drawn(encoded(*["push it"] * 3), SlotNoise(3, (5, 0), np.arange(3, 6))))
    assert whole[3:] == later
    assert len(set(whole)) > 1


@pytest.mark.processes
def test_a_run_learns_with_other_words_of_its_datasets_and_tasks(
    demos: Path, cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*TOY, "--dataset", str(demos), "--episodes", "1", "--paraphrases", "words.yml", "-n", "1"]
    for sentence, status in (("reach the blue block", 0), ("reach the rod block", 2)):
        Path("words.yml").write_text(f"reach the red block: [go to red]\n{sentence}: [go there]\n")
        assert guarded(sft.run, [*asked, "--eval-episodes", "0"]) == status
    assert "Did you mean 'reach the red block'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["- push it", "push it: shove it", "push it: [3]", "push it: ['']", "3: [shove it]", "lift it: [raise it]"]
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "words.yml"
    file.write_text(text)
    with pytest.raises((BadValue, UnknownName)):
        read_paraphrases(file, KNOWN)
