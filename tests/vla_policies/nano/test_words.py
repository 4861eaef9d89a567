"""Words read through WordLlama's frozen vectors."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue, MissingDependency
from vla_gym.observation import encode_instruction
from vla_policies import Conventions, VLAPolicy
from vla_policies.footprint import Footprint
from vla_policies.nano.model import NanoTrunk
from vla_policies.processing.observations import word_vectors

MakeObs = Callable[..., dict[str, np.ndarray]]
MakePolicy = Callable[..., VLAPolicy]
OPTIONS = {"size": "tiny", "width": 32, "heads": 2, "words": "wordllama"}
TAUGHT, REWORDED, OTHER = "put the bowl on the plate", "set a dish atop some saucer", "open the middle drawer"


def shown(obs: dict[str, np.ndarray], *sentences: str) -> dict[str, np.ndarray]:
    return {**obs, "instruction": np.stack([encode_instruction(sentence) for sentence in sentences])}


def sentence_of(policy: VLAPolicy, obs: dict[str, np.ndarray]) -> torch.Tensor:
    """What conditions the images: the normalised mean of the words, `[B, width]`."""
    inputs = policy.prepare(obs)
    trunk = policy.backbone
    assert isinstance(trunk, NanoTrunk)
    return trunk._sentence(trunk.words(inputs.text_BL), inputs.text_mask_BL).detach()


@pytest.mark.parametrize("family", ["nano", "nano-flow"])
def test_a_reworded_sentence_is_closer_than_another_task_before_anything_is_learned(
    family: str, make_policy: MakePolicy, make_obs: MakeObs
) -> None:
    def closeness(words: str) -> tuple[float, float]:
        policy = make_policy(backbone=family, backbone_kwargs={**OPTIONS, "words": words})
        taught, reworded, other = sentence_of(policy, shown(make_obs(3), TAUGHT, REWORDED, OTHER))
        return torch.cosine_similarity(taught, reworded, dim=0).item(), torch.cosine_similarity(
            taught, other, dim=0
        ).item()

    near, far = closeness("wordllama")
    assert near > far + 0.3
    assert near > closeness("hashed")[0]


def test_vectors_are_the_tables_rows() -> None:
    # Llama 2's pieces of "the bowl": "▁the" 278, "▁bow" 12580, "l" 29880.
    from safetensors.numpy import load_file

    origin = importlib.util.find_spec("wordllama").origin  # type: ignore[union-attr]
    table = load_file(Path(str(origin)).parent / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    assert np.array_equal(word_vectors("The bowl"), table[[278, 12580, 29880]].astype(np.float32))
    with pytest.raises(BadValue, match="holds 0 words"):
        word_vectors("?!")
    assert len(word_vectors("\u0f40" * 53)) == 80  # three pieces each, bytes, for which there are not enough places


@pytest.mark.parametrize("family", ["nano", "nano-flow"])
def test_a_folder_says_whose_words_it_reads_and_goes_without_their_table(
    family: str, make_policy: MakePolicy, tmp_path: Path
) -> None:
    make_policy(backbone=family, backbone_kwargs=OPTIONS).save_pretrained(tmp_path)
    model = json.loads((tmp_path / "config.json").read_text())["model"]
    assert model.get("trunk", model)["words"] == "wordllama"
    assert (tmp_path / "model.safetensors").stat().st_size < 2e6


def test_a_trained_policy_takes_new_words_and_keeps_the_rest(
    make_policy: MakePolicy, make_obs: MakeObs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hashed = make_policy()
    hashed.save_pretrained(tmp_path / "hashed")
    renewed = VLAPolicy.from_pretrained(tmp_path / "hashed", device="cpu", backbone_kwargs={"words": "wordllama"})
    assert "words begin anew" in caplog.text
    kept, had = renewed.backbone.state_dict(), hashed.backbone.state_dict()
    same = {name for name in kept if name in had and torch.equal(kept[name], had[name])}
    assert kept.keys() - same == {"words.proj.weight", "words.proj.bias", "words.position"}
    caplog.clear()
    renewed.save_pretrained(tmp_path / "renewed")
    # A run's own settings are given again when its checkpoint is opened.
    again = VLAPolicy.from_pretrained(tmp_path / "renewed", device="cpu", backbone_kwargs={"words": "wordllama"})
    assert torch.equal(again.backbone.words.proj.weight, renewed.backbone.words.proj.weight)
    assert not caplog.text


def test_without_the_package_a_line_says_what_to_install(
    make_policy: MakePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_policy(backbone_kwargs=OPTIONS).save_pretrained(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"wordllama, not installed here. Install with: pip install 'vla-zoo\[words\]"
    ):
        VLAPolicy.from_pretrained(tmp_path, device="cpu")


def test_memory_is_planned_with_vectors_for_words(
    conventions: Conventions, make_policy: MakePolicy, make_obs: MakeObs
) -> None:
    assert Footprint("nano", conventions, OPTIONS).act(64) > Footprint(
        "nano", conventions, {**OPTIONS, "words": "hashed"}
    ).act(64)
    assert make_policy(backbone_kwargs=OPTIONS).act(make_obs(1)).action_BKA.isfinite().all()  # and it still acts
