"""Which sentence a frame is shown with, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.zoo.demonstrations.test_lerobot import shown as shown_episode
from tests.zoo.imitation.test_augmentation import Constant
from tests.zoo.launching import TOY
from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import decode_instruction, encode_instruction
from vla_gym.registry import find_benchmark
from vla_policies.actions.noise import SlotNoise
from zoo import sft
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.imitation.paraphrases import check_taught, paraphrases_of, read_paraphrases


def encoded(*sentences: str) -> Tensor:
    return torch.from_numpy(np.stack([encode_instruction(one) for one in sentences]))


def words(instruction_BL: Tensor) -> list[str]:
    return [decode_instruction(row) for row in instruction_BL.numpy()]


TAUGHT = encoded("push it", "pull it", "push it")
OTHERS = {"push it": ("shove it", "move it away")}


@pytest.mark.parametrize(
    ("number", "push"),
    [(0.0, "push it"), (0.33, "push it"), (0.34, "shove it"), (0.67, "move it away"), (0.999999, "move it away")],
)
def test_all_choices_are_equally_likely_and_other_sentences_stay(number: float, push: str) -> None:
    paraphrases = paraphrases_of(OTHERS, TAUGHT)
    shown = paraphrases.drawn(encoded("pull it", "push it", "another"), Constant(number))
    assert words(shown) == ["pull it", push, "another"]


def test_what_is_drawn_follows_from_seed_update_and_place() -> None:
    paraphrases = paraphrases_of(OTHERS, TAUGHT)
    whole = words(paraphrases.drawn(encoded(*["push it"] * 6), SlotNoise(3, (5, 0), np.arange(6))))
    later = words(paraphrases.drawn(encoded(*["push it"] * 3), SlotNoise(3, (5, 0), np.arange(3, 6))))
    assert whole[3:] == later
    assert len(set(whole)) > 1


def test_other_choices_have_another_digest() -> None:
    assert paraphrases_of(OTHERS, TAUGHT).digest() != paraphrases_of({"push it": ("shove it",)}, TAUGHT).digest()


def test_a_sentence_that_is_not_learned_is_noted_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "zoo")
    paraphrases = paraphrases_of({**OTHERS, "lift it": ("raise it",), "drop it": ("let it go",)}, TAUGHT)
    assert paraphrases.digest() == paraphrases_of(OTHERS, TAUGHT).digest()
    (said,) = caplog.messages
    assert said == "--paraphrases: no episode that is learned has the sentence 'lift it' and 1 more"


def test_a_sentence_is_of_a_dataset_or_of_a_task(demos: Path, tmp_path: Path) -> None:
    LeRobotWriter(tmp_path / "d", {}, fps=10).add([shown_episode(2, "push it"), shown_episode(2, "pull it")], tried=2)
    toy = find_benchmark("Toy-Reach")
    check_taught(["push it", "pull it", "reach the red block"], [tmp_path / "d"], toy)
    for folder in (tmp_path / "d", demos):
        with pytest.raises(UnknownName, match=r"'reach the rod block'.*Did you mean 'reach the red block'"):
            check_taught(["reach the rod block"], [folder], toy)
    with pytest.raises(UnknownName, match="'push it'"):
        check_taught(["push it"], [demos], toy)


@pytest.mark.processes
def test_sentences_of_episodes_that_are_not_learned_may_have_paraphrases(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.yml").write_text("reach the red block: [go to red]\nreach the blue block: [go to blue]\n")
    asked = [*TOY, "--dataset", str(demos), "--episodes", "1", "--paraphrases", "words.yml", "-n", "1"]
    assert sft.run([*asked, "--eval-episodes", "0"]) == 0
    assert "no episode that is learned has the sentence 'reach the blue block'\n" in capsys.readouterr().out


def test_a_file_maps_sentences_to_lists(tmp_path: Path) -> None:
    file = tmp_path / "words.yml"
    file.write_text("push it: [shove it, move it away]\n")
    assert read_paraphrases(file) == OTHERS
    for text, says in (
        ("- push it", "must map sentences to lists of sentences, got list"),
        ("push it: shove it", "'push it' must have a list of 1 to 100 sentences, got 'shove it'"),
        ("push it: []", "got []"),
        ("push it: [3]", "got [3]"),
        ("push it: ['']", "0 UTF-8 bytes"),
        ("3: [shove it]", "a key must be text, got 3"),
    ):
        file.write_text(text)
        with pytest.raises(BadValue) as error:
            read_paraphrases(file)
        assert says in str(error.value)
