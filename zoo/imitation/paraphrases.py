"""Other words for the sentences of demonstrations: each frame of an update is shown with one of them, drawn anew."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vla_gym.errors import BadValue, shown, unknown_name
from vla_gym.observation import check_instruction, decode_instruction, encode_instruction
from vla_gym.specs import Benchmark
from vla_policies.actions.noise import Noise
from zoo.demonstrations.lerobot_reader import sentences_of
from zoo.yaml_text import read_yaml_mapping

MOST = 100
"""Paraphrases of one sentence."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Paraphrases:
    """S taught sentences, each with up to M - 1 others, as the bytes of an observation (L of them)."""

    taught_SL: Tensor
    """Uint8."""
    choices_SML: Tensor
    """Uint8; the taught sentence first, zeros after the last."""
    number_S: Tensor
    """Choices of each, int64."""

    def drawn(self, instruction_BL: Tensor, noise: Noise) -> Tensor:
        """Uint8 `[B, L]`: for each sentence one of its choices, all equally likely; other sentences stay."""
        same_BS = (instruction_BL[:, None] == self.taught_SL.to(instruction_BL.device)).all(dim=2)
        sentence_B = same_BS.long().argmax(dim=1)
        number_B = self.number_S.to(instruction_BL.device)[sentence_B]
        uniform_B = noise.uniform(len(instruction_BL), 1, device=instruction_BL.device)[:, 0]
        choice_B = (uniform_B * number_B).long().clamp(max=number_B - 1)
        chosen_BL = self.choices_SML.to(instruction_BL.device)[sentence_B, choice_B]
        return torch.where(same_BS.any(dim=1, keepdim=True), chosen_BL, instruction_BL)

    def digest(self) -> str:
        """SHA-256 of all choices, in hexadecimal."""
        return hashlib.sha256(self.choices_SML.numpy().data).hexdigest()


def read_paraphrases(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Taught sentence -> others, of a YAML file; raises `BadValue` for anything else."""
    where = f"--paraphrases {path}"
    found = {}
    for sentence, others in read_yaml_mapping(path, "sentences to lists of sentences", where).items():
        if not isinstance(others, list) or not 1 <= len(others) <= MOST or not all(isinstance(o, str) for o in others):
            raise BadValue(f"{where}: {shown(sentence)} must have a list of 1 to {MOST} sentences, got {shown(others)}")
        for one in others:
            check_instruction(one)
        found[sentence] = tuple(others)
    return found


def check_taught(others: Iterable[str], folders: Sequence[Path], benchmark: Benchmark) -> None:
    """Raise `UnknownName` for a sentence that no episode of the datasets in `folders` has, and no task either."""
    told = {sentence for folder in folders for sentence in sentences_of(folder)}
    known = told | {task.instruction for task in benchmark.tasks}
    for sentence in others:
        if sentence not in known:
            raise unknown_name("sentence of the demonstrations or tasks", sentence, known)


def paraphrases_of(others: Mapping[str, Sequence[str]], instruction_FL: Tensor) -> Paraphrases:
    """For frames with these sentences, uint8 `[F, L]`; a sentence that none of them has is noted and left out."""
    rows = [decode_instruction(row) for row in torch.unique(instruction_FL, dim=0).numpy()]
    if absent := [sentence for sentence in others if sentence not in rows]:
        listed = f"{shown(absent[0])}" + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
        _logger.info(f"--paraphrases: no episode that is learned has the sentence {listed}")
    choices = {sentence: [sentence, *others.get(sentence, ())] for sentence in rows}
    most = max(map(len, choices.values()))
    choices_SML = torch.zeros(len(rows), most, instruction_FL.shape[1], dtype=torch.uint8)
    for place, sentences in enumerate(choices.values()):
        for number, sentence in enumerate(sentences):
            choices_SML[place, number] = torch.from_numpy(encode_instruction(sentence))
    return Paraphrases(choices_SML[:, 0], choices_SML, torch.tensor([len(one) for one in choices.values()]))
