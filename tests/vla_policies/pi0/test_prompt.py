import logging
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from vla_gym.errors import BadValue
from vla_policies.pi0.prompt import (
    BOS,
    NEWLINE,
    PromptTokenizer,
    paligemma_encoder,
    pi0_text,
    pi05_text,
    state_bins,
    words_encoder,
)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_pi0_text_is_cleaned() -> None:
    assert pi0_text("  pick_up the\nbowl ") == "pick up the bowl"


def test_state_bins_by_hand() -> None:
    # 256 bins of width 1/128 from -1: -1 opens bin 0, 0 opens bin 128, what lies below is -1, above stays 255.
    values = np.array([-1.5, -1.0, -1.0 + 1 / 128, 0.0, 0.999, 1.0, 7.0])
    assert state_bins(values).tolist() == [-1, 0, 1, 128, 255, 255, 255]


def test_pi05_text_by_hand() -> None:
    assert pi05_text("open_it", np.array([0.0, -1.0])) == "Task: open it, State: 128 0;\nAction: "


def test_ids_begin_with_bos_and_may_end_with_a_newline() -> None:
    tokenizer = PromptTokenizer(letters, 6)
    text_BL, mask_BL = tokenizer.batch(["ab", "abc"], newline=True)
    assert text_BL.tolist() == [[BOS, 97, 98, NEWLINE, 0, 0], [BOS, 97, 98, 99, NEWLINE, 0]]
    assert mask_BL.sum(dim=1).tolist() == [4, 5]
    assert tokenizer.batch(["ab"], newline=False)[0].tolist() == [[BOS, 97, 98, 0, 0, 0]]


def test_what_is_too_long_is_cut_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = PromptTokenizer(letters, 3)
    with caplog.at_level(logging.WARNING):
        text_BL, mask_BL = tokenizer.batch(["abcd", "efgh"], newline=True)
    assert text_BL.tolist() == [[BOS, 97, 98], [BOS, 101, 102]]
    assert mask_BL.all()
    assert len(caplog.records) == 1
    assert "prompt of 6 tokens cut to 3" in caplog.text


def test_hashed_words_stay_in_the_vocabulary() -> None:
    encode = words_encoder(120)
    ids = encode("put the bowl on the plate")
    assert ids[1] == ids[4]
    assert all(NEWLINE < token < 120 for token in ids)
    with pytest.raises(BadValue, match="more than 109 ids"):
        words_encoder(100)


def test_a_folders_own_tokenizer_is_used(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"open": 7, "it": 8, "?": 9}, unk_token="?"))  # noqa: S106 - a token of text
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert paligemma_encoder(tmp_path)("open it") == [7, 8]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadValue, match="cannot be read as a tokenizer"):
        paligemma_encoder(tmp_path)


def test_a_missing_tokenizer_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BadValue, match=r"has no tokenizer\.json.*google/paligemma-3b-pt-224.*gated") as caught:
        paligemma_encoder(tmp_path)
    assert "\n" not in str(caught.value)
