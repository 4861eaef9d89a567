"""Limits of sizes in settings that may come from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io.folder import check_sizes


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"text_config": {"num_hidden_layers": 10**5}}, "num_hidden_layers"),
        ({"timm_model_kwargs": [{"depth": 10**9}]}, "depth"),
        ({"vocab_size": -(10**18)}, "vocab_size"),
        ({"image_sizes": [224, 10**5]}, "image_sizes"),
        ({"input_features": {"a": {"shape": [3, 10**9]}}}, "shape"),
        ({"conventions": {"chunk": 10**30}}, "chunk"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"chunk_size": float("nan")}, "chunk_size"),
    ],
)
def test_a_size_that_no_network_has_is_named(values: dict[str, Any], key: str) -> None:
    with pytest.raises(BadValue, match=f"'config.json' gives '{key}' as"):
        check_sizes(values, Path("config.json"))


def test_sizes_and_numbers_of_published_checkpoints_are_taken() -> None:
    largest = {"num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248, "vocab_size": 262208}
    others = {"scheduler_decay_steps": 10**6, "image_token_index": 257152, "num_transitions": 10**8, "size": 512}
    special = {"model_max_length": int(1e30), "num_vlm_layers": -1, "max_position_embeddings": 10**7}
    check_sizes({**largest, **others, **special, "mean": [1e30]}, Path("config.json"))


def test_what_is_nested_deep_is_walked() -> None:
    deep: Any = {"depth": 9999}
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadValue, match="depth"):
        check_sizes(deep, Path("config.json"))
