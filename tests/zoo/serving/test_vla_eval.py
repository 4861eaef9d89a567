"""vla-eval's protocol, the server's side against the client's, and with a message of the real client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vla_gym.errors import BadValue, ServerFailed
from vla_gym.specs import ActionSpec
from zoo.serving.declaration import Declaration
from zoo.serving.requests import NoiseKey, NoiseStream, Request
from zoo.serving.vla_eval import VlaEvalClientSession, VlaEvalServerSession, action_spec, observation_spec
from zoo.serving.wire import pack_vla_eval, unpack

from .conftest import observation
from .test_openpi import decision
from .test_wire import OF_VLA_EVAL, PICTURE, bytes_of

NAMES = VlaEvalServerSession.NAMES


@pytest.fixture
def server(declaration: Declaration) -> VlaEvalServerSession:
    return VlaEvalServerSession(declaration, NAMES, NoiseStream(seed=3, slot=0))


def message(kind: str, payload: Any, seq: int = 1) -> bytes:
    return pack_vla_eval({"type": kind, "payload": payload, "seq": seq, "timestamp": 1.0})


def payload_of(answer: Any) -> dict[str, Any]:
    assert isinstance(answer, bytes)
    return dict(unpack(answer)["payload"])


def test_a_chunk_is_dealt_action_by_action_and_an_episode_drops_the_rest(
    server: VlaEvalServerSession, declaration: Declaration
) -> None:
    actions = decision(declaration).action_KA
    assert server.receive(message("episode_start", {"task": {"name": "x"}})) is None
    asked = server.receive(bytes_of(OF_VLA_EVAL))
    assert isinstance(asked, Request)
    assert np.array_equal(asked.observation["image"], PICTURE)
    first = unpack(server.answer(decision(declaration)))
    assert (first["type"], first["seq"]) == ("action", 3)
    dealt = [payload_of(server.receive(bytes_of(OF_VLA_EVAL)))["actions"] for _ in range(2)]
    assert np.array_equal([first["payload"]["actions"], *dealt], actions)
    again = server.receive(bytes_of(OF_VLA_EVAL))
    assert isinstance(again, Request)
    assert again.noise.numbers == (0, 1, 0)
    server.answer(decision(declaration))
    assert server.receive(message("episode_end", {})) is None
    assert server.receive(message("episode_start", {})) is None
    anew = server.receive(bytes_of(OF_VLA_EVAL))
    assert isinstance(anew, Request)
    assert anew.noise.numbers == (1, 0, 0)


def test_both_of_vla_evals_words_for_the_state_are_read(declaration: Declaration) -> None:
    obs = observation(declaration)
    payload = {"images": {"agentview": obs["image"]}, "task_description": "x", "state": obs["state"]}
    asked = VlaEvalServerSession(declaration, NAMES, NoiseStream(seed=3, slot=0)).receive(
        message("observation", payload)
    )
    assert isinstance(asked, Request)
    assert np.array_equal(asked.observation["state"], obs["state"])
    other = VlaEvalServerSession(declaration, {**NAMES, "state": "joints"}, NoiseStream(seed=3, slot=0))
    with pytest.raises(BadValue, match="lacks the array 'joints'"):
        other.receive(message("observation", payload))


def test_an_observation_is_checked_where_its_action_is_ready(
    server: VlaEvalServerSession, declaration: Declaration
) -> None:
    server.receive(bytes_of(OF_VLA_EVAL))
    server.answer(decision(declaration))
    with pytest.raises(BadValue, match="lacks the array 'agentview'"):
        server.receive(message("observation", {"images": {}, "task_description": "x"}))


def test_our_client_takes_the_chunk_at_once(server: VlaEvalServerSession, declaration: Declaration) -> None:
    client = VlaEvalClientSession(NAMES)
    hello = client.hello()
    assert hello is not None
    greeting = server.receive(hello)
    assert isinstance(greeting, bytes)
    metadata = client.read_greeting(greeting)
    assert Declaration.from_json(metadata["vla_zoo"], "it") == declaration
    assert metadata["observation_params"] == {"send_state": True}
    assert metadata["protocol_version"] == 1
    for first in client.episode("reach red"):
        assert server.receive(first) is None
    key = NoiseKey(seed=9, numbers=(1, 2, 3, 4))
    asked = server.receive(client.observation(observation(declaration), key, deterministic=False))
    assert isinstance(asked, Request)
    assert (asked.noise, asked.deterministic, asked.whole_chunk) == (key, False, True)
    answer = client.read_answer(server.answer(decision(declaration)))
    assert np.array_equal(answer["actions"], decision(declaration).action_KA)
    assert answer["value"] == 0.5
    assert len(client.episode("again")) == 2  # the first one ends


def test_specs_in_vla_evals_words(declaration: Declaration) -> None:
    libero = replace(
        declaration,
        action_dim=7,
        action_spec=ActionSpec(rotation="axis_angle", gripper="plus_one_closes", frame="delta"),
        state="eef position 3, axis-angle 3 (robosuite quat2axisangle), gripper qpos 2",
        state_dim=8,
    )
    formats = {part: (spec["dims"], spec["format"]) for part, spec in action_spec(libero).items()}
    assert formats == {
        "position": (3, "delta_xyz"),
        "rotation": (3, "axis_angle"),
        "gripper": (1, "binary_close_positive"),
    }
    assert observation_spec(libero, NAMES)["state"]["format"] == "eef_pos3_axisangle3_gripper2"
    assert observation_spec(declaration, NAMES)["state"]["format"] == "raw"
    assert action_spec(replace(declaration, action_spec=None)) == {
        "actions": {"name": "actions", "dims": 2, "format": "raw"}
    }


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (message("bogus", {}), "a message has type"),
        (message("action", {}), "not for a policy server"),
        (message("observation", [1]), "must be a mapping"),
        (message("observation", {"images": [1]}), "'images' of an observation must be a mapping"),
        (pack_vla_eval({"type": "hello", "payload": {}}), "a message has type"),
    ],
)
def test_other_messages_are_refused(server: VlaEvalServerSession, data: bytes, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        server.receive(data)
    assert unpack(server.refusal("no"))["payload"] == {"error": "no"}


def test_a_servers_error_is_one_line() -> None:
    client = VlaEvalClientSession(NAMES)
    with pytest.raises(ServerFailed, match=r"refused: observation_failed: two lines$"):
        client.read_answer(message("error", {"error": "observation_failed:\n two lines"}))
    with pytest.raises(ServerFailed, match="'vla_zoo' of the server's answer must be a mapping"):
        client.read_answer(message("action", {"actions": np.zeros((3, 2), np.float32), "vla_zoo": 3}))
    with pytest.raises(ServerFailed, match="type 'hello' instead of 'action'"):
        client.read_answer(message("hello", {}))
    with pytest.raises(ServerFailed, match="cannot be read"):
        client.read_answer("text")
