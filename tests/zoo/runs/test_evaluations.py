"""What a fingerprint is of: the policy's weights, wherever they lie."""

from __future__ import annotations

from pathlib import Path

from zoo.runs.evaluations import weights_sha256


def written(folder: Path, **contents: str) -> Path:
    folder.mkdir()
    for name, text in contents.items():
        (folder / f"{name}.safetensors").write_text(text)
    return folder


def test_the_same_weights_are_known_anywhere_and_others_are_not(tmp_path: Path) -> None:
    best = weights_sha256(written(tmp_path / "best", model="abc", value_head="d"))
    assert best is not None
    assert weights_sha256(written(tmp_path / "copy", value_head="d", model="abc")) == best
    step = written(tmp_path / "step_9", model="abc", value_head="d", optimizer="e", rollout="f", reference="g")
    assert weights_sha256(step) == best
    for number, others in enumerate(({"model": "abd"}, {"model": "abcd", "value_head": ""}, {"model": "abc"})):
        assert weights_sha256(written(tmp_path / str(number), **others)) != best
