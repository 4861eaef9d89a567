import subprocess
import sys

import pytest

from vla_gym.errors import BadValue
from vla_policies.processing.word_hash import tokenize, word_id

GOLDEN = (891931, 388522, 56977, 18851)
"""Ids of "reach the red block"; a change of these numbers makes every trained nano deaf."""


def test_golden_ids() -> None:
    assert tokenize("reach the red block") == GOLDEN
    assert tokenize("  Reach THE red-block!") == GOLDEN
    assert tokenize("Bowl\u2019s") == (883317, word_id("s"))


@pytest.mark.processes
def test_another_process_with_another_hash_seed_agrees() -> None:
    code = "from vla_policies.processing.word_hash import tokenize; print(tokenize('reach the red block'))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(GOLDEN)


def test_ids_have_twenty_bits_and_common_words_differ() -> None:
    words = [f"{colour}{kind}" for colour in "abcdefghijklmnopqrst" for kind in range(20)]
    ids = [word_id(word) for word in words]
    assert all(0 <= token < 1 << 20 for token in ids)
    assert len(set(ids)) == len(words)


@pytest.mark.parametrize("text", ["", "  ", "!?"])
def test_a_sentence_without_words_raises(text: str) -> None:
    with pytest.raises(BadValue, match="holds no word"):
        tokenize(text)
