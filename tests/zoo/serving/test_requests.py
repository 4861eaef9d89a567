"""The random numbers of a request, and what our own clients add to an observation."""

from __future__ import annotations

from typing import Any

import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo.serving.declaration import Declaration
from zoo.serving.openpi import OpenpiServerSession
from zoo.serving.requests import NoiseKey, NoiseStream, make_request

from .conftest import observation


def request(declaration: Declaration, extras: Any, stream: NoiseStream | None = None) -> Any:
    given = observation(declaration)
    return make_request(given, extras, declaration, OpenpiServerSession.NAMES, stream or NoiseStream(seed=5, slot=2))


def test_a_stream_counts_decisions_and_episodes() -> None:
    stream = NoiseStream(seed=5, slot=2)
    assert [stream.next_key().numbers for _ in range(2)] == [(0, 0, 2), (0, 1, 2)]
    stream.begin_episode()
    stream.begin_episode()  # nothing was decided in between
    assert stream.next_key() == NoiseKey(seed=5, numbers=(1, 0, 2))


def test_keys_survive_the_wire() -> None:
    for key in (NoiseKey(seed=7, numbers=(0, 3, 1)), NoiseKey(seed=7, numbers=(9, 49, 1, 12))):
        assert NoiseKey.from_list(key.to_list()) == key
    for wrong in (None, [1, 2], [1, 2, 3, 4, 5, 6], [-1, 0, 0, 0], [0, 0, 0, 2**31], [0, 0, 0, True], [2**32, 0, 0, 0]):
        with pytest.raises(BadValue, match="noise"):
            NoiseKey.from_list(wrong)


def test_without_extras_the_stream_and_the_server_decide(declaration: Declaration) -> None:
    stream = NoiseStream(seed=5, slot=2)
    made = request(declaration, None, stream)
    assert (made.noise, made.deterministic, made.details) == (NoiseKey(seed=5, numbers=(0, 0, 2)), True, False)
    assert stream.decision == 1


def test_extras_name_noise_and_selection(declaration: Declaration) -> None:
    stream = NoiseStream(seed=5, slot=2)
    made = request(declaration, {"noise": [1, 2, 3, 4], "deterministic": False, "chunk": True}, stream)
    assert (made.noise.to_list(), made.deterministic, made.whole_chunk) == ([1, 2, 3, 4], False, True)
    assert made.details
    assert stream.decision == 0
    with pytest.raises(UnknownName, match="noise"):
        request(declaration, {"nois": 1})
    with pytest.raises(BadValue, match="true or false"):
        request(declaration, {"deterministic": 1})
    with pytest.raises(BadValue, match="must be a mapping"):
        request(declaration, 7)
