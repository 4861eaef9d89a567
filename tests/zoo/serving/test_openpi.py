"""openpi's protocol, the server's side against the client's; bytes of the real client: test_wire."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym.errors import BadValue, ServerFailed
from zoo.serving.declaration import Declaration
from zoo.serving.openpi import OpenpiClientSession, OpenpiServerSession
from zoo.serving.requests import Decision, NoiseKey, NoiseStream, Request
from zoo.serving.wire import pack_openpi, unpack

from .conftest import observation
from .test_wire import OF_OPENPI, PICTURE, bytes_of

NAMES = OpenpiServerSession.NAMES


def decision(declaration: Declaration) -> Decision:
    shape = (declaration.chunk, declaration.action_dim)
    actions = np.linspace(-1, 1, 6, dtype=np.float32).reshape(shape)
    return Decision(action_KA=actions, logprob_KA=-np.ones(shape, np.float32), value=0.5, seconds=0.25)


def test_the_real_clients_message_becomes_a_request_and_gets_actions_alone(declaration: Declaration) -> None:
    server = OpenpiServerSession(declaration, NAMES, NoiseStream(seed=3, slot=0))
    asked = server.receive(bytes_of(OF_OPENPI))
    assert isinstance(asked, Request)
    assert np.array_equal(asked.observation["image"], PICTURE)
    assert asked.observation["state"].tolist() == [0.5, -1.0]
    assert asked.observation["instruction"] == "reach red"
    answer = unpack(server.answer(decision(declaration)))
    assert set(answer) == {"actions", "server_timing"}
    assert answer["server_timing"] == {"infer_ms": 250.0}
    assert np.array_equal(answer["actions"], decision(declaration).action_KA)


def test_our_client_learns_the_declaration_and_names_its_noise(declaration: Declaration) -> None:
    server = OpenpiServerSession(declaration, NAMES, NoiseStream(seed=3, slot=0))
    client = OpenpiClientSession(NAMES)
    assert client.hello() is None
    greeting = server.greeting()
    assert greeting is not None
    metadata = client.read_greeting(greeting)
    assert Declaration.from_json(metadata["vla_zoo"], "it") == declaration
    assert metadata["stream"] == {"seed": 3, "slot": 0}
    assert client.server_is_ours
    assert client.episode("reach red") == []
    key = NoiseKey(seed=9, numbers=(1, 2, 3, 4))
    asked = server.receive(client.observation(observation(declaration), key, deterministic=False))
    assert isinstance(asked, Request)
    assert (asked.noise, asked.deterministic) == (key, False)
    answer = client.read_answer(server.answer(decision(declaration)))
    assert answer["value"] == 0.5
    assert answer["logprob"].tolist() == [[-1.0, -1.0]] * 3


def test_a_foreign_server_is_told_nothing_of_ours(declaration: Declaration) -> None:
    client = OpenpiClientSession(NAMES)
    client.read_greeting(pack_openpi({}))
    message = client.observation(observation(declaration), NoiseKey(seed=0, numbers=(0, 0, 0)), deterministic=True)
    assert set(unpack(message)) == {"observation/image", "observation/state", "prompt"}


def test_refusals_are_text_as_openpis_servers_send_it(declaration: Declaration) -> None:
    server = OpenpiServerSession(declaration, NAMES, NoiseStream(seed=3, slot=0))
    with pytest.raises(BadValue, match="'observation/state'"):
        server.receive(pack_openpi({"observation/image": observation(declaration)["image"], "prompt": "x"}))
    assert server.refusal("no") == "no"
    client = OpenpiClientSession(NAMES)
    with pytest.raises(ServerFailed, match="refused: Traceback ValueError: x"):
        client.read_answer("Traceback\n  ValueError: x")
    for odd in (3, [1], None):
        with pytest.raises(ServerFailed, match="'vla_zoo' of the server's answer must be a mapping"):
            client.read_answer(pack_openpi({"actions": np.zeros((3, 2), np.float32), "vla_zoo": odd}))
    with pytest.raises(ServerFailed, match="answer cannot be read"):
        client.read_answer(b"\xc1")
