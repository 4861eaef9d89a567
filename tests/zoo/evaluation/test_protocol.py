"""What a protocol may hold."""

from __future__ import annotations

from typing import Any

import pytest

from vla_gym.errors import BadValue
from zoo.evaluation.protocol import EvaluationProtocol


def test_a_published_protocol_in_one_record() -> None:
    published = EvaluationProtocol(sample=True, temperature=1.6, rounds=2, env_kwargs={"protocol": "rlinf"})
    assert published.sampling == {"temperature": 1.6}
    assert published.to_json() == {
        "sample": True,
        "temperature": 1.6,
        "top_k": None,
        "rounds": 2,
        "start_states": None,
        "split": None,
        "env_kwargs": {"protocol": "rlinf"},
    }
    assert EvaluationProtocol().sampling == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.6},
        {"top_k": 50},
        {"sample": True, "temperature": 0.0},
        {"sample": True, "top_k": -1},
        {"rounds": 0},
    ],
)
def test_what_contradicts_itself(fields: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=list(fields)[-1]):
        EvaluationProtocol(**fields)
