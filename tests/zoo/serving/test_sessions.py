"""Both protocols, the server's side against the client's, and with messages of the real clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vla_gym.errors import BadValue, ServerFailed, UnknownName
from vla_gym.specs import ActionSpec
from vla_policies.checkpoint_io.json_records import from_json
from zoo.serving.declaration import METADATA_KEY, Declaration
from zoo.serving.openpi import OpenpiClientSession, OpenpiServerSession
from zoo.serving.protocols import ActionRequest, check_chunk, renamed
from zoo.serving.server import SESSIONS
from zoo.serving.vla_eval import VlaEvalClientSession, VlaEvalServerSession, action_spec, observation_spec
from zoo.serving.wire import pack_openpi, pack_vla_eval, unpack

from .conftest import observation
from .test_wire import IMAGE, OF_OPENPI, OF_VLA_EVAL, bytes_of

WORDS = VlaEvalServerSession.NAMES


def chunk(declaration: Declaration) -> np.ndarray:
    return np.linspace(-1, 1, 6, dtype=np.float32).reshape(declaration.chunk, declaration.action_dim)


def opened(protocol: str, declaration: Declaration, **own: str) -> Any:
    session = SESSIONS[protocol]
    return session(declaration, {**session.NAMES, **own}, 3, 0)


def message(kind: str, payload: Any, seq: int = 1) -> bytes:
    return pack_vla_eval({"type": kind, "payload": payload, "seq": seq, "timestamp": 1.0})


@pytest.mark.parametrize("protocol", ["openpi", "vla-eval"])
def test_our_client_learns_the_declaration_and_names_its_noise(declaration: Declaration, protocol: str) -> None:
    server = opened(protocol, declaration)
    client = server.CLIENT(server.NAMES)
    hello = client.hello()
    metadata = client.read_greeting(server.greeting() if hello is None else server.receive(hello))
    assert from_json(Declaration, metadata[METADATA_KEY], "it") == declaration
    assert metadata["stream"] == {"seed": 3, "slot": 0}
    for first in client.episode("reach red"):
        assert server.receive(first) is None
    asked = server.receive(client.observation(observation(declaration), (9, 1, 2, 3, 4), deterministic=False))
    assert isinstance(asked, ActionRequest)
    assert (asked.noise, asked.deterministic) == ((9, 1, 2, 3, 4), False)
    answer = client.read_answer(server.answer(chunk(declaration), 0.25))
    assert np.array_equal(answer, chunk(declaration))


def test_the_real_openpi_client_gets_the_chunk(declaration: Declaration) -> None:
    server = opened("openpi", declaration)
    asked = server.receive(bytes_of(OF_OPENPI))
    assert np.array_equal(asked.observation["image"], IMAGE)
    assert asked.observation["state"].tolist() == [0.5, -1.0]
    assert asked.observation["instruction"] == "reach red"
    assert [asked.noise, server.receive(bytes_of(OF_OPENPI)).noise] == [(3, 0, 0, 0), (3, 0, 1, 0)]
    answer = unpack(server.answer(chunk(declaration), 0.25))
    assert answer["server_timing"] == {"infer_ms": 250.0}
    assert np.array_equal(answer["actions"], chunk(declaration))


def test_the_real_vla_eval_client_gets_single_actions_and_an_episode_drops_the_rest(declaration: Declaration) -> None:
    server = opened("vla-eval", declaration)
    assert server.receive(message("episode_start", {"task": {"name": "x"}})) is None
    seen = server.receive(bytes_of(OF_VLA_EVAL)).observation
    assert np.array_equal(seen["image"], IMAGE)
    assert seen["state"].tolist() == [0.5, -1.0]
    first = unpack(server.answer(chunk(declaration), 0.25))
    assert (first["type"], first["seq"]) == ("action", 3)
    others = [unpack(server.receive(bytes_of(OF_VLA_EVAL)))["payload"]["actions"] for _ in range(2)]
    assert np.array_equal([first["payload"]["actions"], *others], chunk(declaration))
    assert isinstance(server.receive(bytes_of(OF_VLA_EVAL)), ActionRequest)
    server.answer(chunk(declaration), 0.25)
    with pytest.raises(BadValue, match="agentview"):  # checked though its action is ready
        server.receive(message("observation", {"images": {}, "task_description": "x"}))
    for kind in ("episode_end", "episode_start"):
        assert server.receive(message(kind, {})) is None
    assert isinstance(server.receive(bytes_of(OF_VLA_EVAL)), ActionRequest)


def test_both_of_vla_evals_words_for_the_state_are_read(declaration: Declaration) -> None:
    obs = observation(declaration)
    payload = {"images": {"agentview": obs["image"]}, "task_description": "x", "state": obs["state"]}
    asked = opened("vla-eval", declaration).receive(message("observation", payload))
    assert np.array_equal(asked.observation["state"], obs["state"])
    with pytest.raises(BadValue, match="joints"):
        opened("vla-eval", declaration, state="joints").receive(message("observation", payload))


def test_a_foreign_server_gets_no_additions_of_ours(declaration: Declaration) -> None:
    client = OpenpiClientSession(OpenpiServerSession.NAMES)
    client.read_greeting(pack_openpi({}))
    sent = client.observation(observation(declaration), (0, 0, 0, 0), deterministic=True)
    assert set(unpack(sent)) == {"observation/image", "observation/state", "prompt"}


@pytest.mark.parametrize(
    ("extras", "error"),
    [
        ({"nois": 1}, UnknownName),
        ({"deterministic": 1}, BadValue),
        (7, BadValue),
        *(({"noise": noise}, BadValue) for noise in (None, [1, 2], [-1, 0, 0, 0], [0, 0, 0, 2**31], [0, 0, 0, True])),
    ],
)
def test_additions_that_cannot_be_are_refused(declaration: Declaration, extras: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        opened("openpi", declaration).request(observation(declaration), extras)


@pytest.mark.parametrize(
    "data",
    [
        message("bogus", {}),
        message("action", {}),
        message("observation", [1]),
        message("observation", {"images": [1]}),
        pack_vla_eval({"type": "hello", "payload": {}}),
    ],
)
def test_other_messages_of_vla_eval_are_refused(declaration: Declaration, data: bytes) -> None:
    with pytest.raises(BadValue):
        opened("vla-eval", declaration).receive(data)


@pytest.mark.parametrize(
    ("client", "answer", "said"),
    [
        (OpenpiClientSession({}), "Traceback\n  ValueError: x", "Traceback ValueError: x"),
        (OpenpiClientSession({}), b"\xc1", "cannot be read"),
        (VlaEvalClientSession({}), message("error", {"error": "failed:\n two lines"}), "failed: two lines"),
        (VlaEvalClientSession({}), message("hello", {}), "'hello'"),
        (VlaEvalClientSession({}), "text", "cannot be read"),
    ],
)
def test_a_servers_error_is_one_line(client: Any, answer: bytes | str, said: str) -> None:
    with pytest.raises(ServerFailed, match=said):
        client.read_answer(answer)


def test_specs_in_vla_evals_words(declaration: Declaration) -> None:
    libero = replace(
        declaration,
        action_dim=7,
        action_spec=ActionSpec(rotation="axis_angle", gripper="plus_one_closes", frame="delta"),
        state="eef position 3, axis-angle 3 (robosuite quat2axisangle), gripper qpos 2",
        state_dim=8,
    )
    assert {part: (spec["dims"], spec["format"]) for part, spec in action_spec(libero).items()} == {
        "position": (3, "delta_xyz"),
        "rotation": (3, "axis_angle"),
        "gripper": (1, "binary_close_positive"),
    }
    assert observation_spec(libero, WORDS)["state"]["format"] == "eef_pos3_axisangle3_gripper2"
    assert observation_spec(declaration, WORDS)["state"]["format"] == "raw"
    assert action_spec(replace(declaration, action_spec=None))["actions"]["format"] == "raw"


def test_own_names_stand_above_the_protocols() -> None:
    assert renamed({"image": "a", "state": "b"}, {"image": "c"}) == {"image": "c", "state": "b"}
    assert renamed({"image": "a", "wrist_image": "b"}, {"image": "b", "wrist_image": "a"})["image"] == "b"
    for own, error in (({"camera": "c"}, UnknownName), ({"state": "a"}, BadValue)):
        with pytest.raises(error):
            renamed({"image": "a", "state": "b"}, own)


def test_a_chunk_is_cut_clipped_and_single_actions_are_chunks(declaration: Declaration) -> None:
    actions = np.linspace(-2, 2, 10).reshape(5, 2)
    chunk = check_chunk(actions, replace(declaration, horizon=5))
    assert chunk.dtype == np.float32
    assert np.array_equal(chunk, np.clip(actions[:3], -1, 1).astype(np.float32))
    assert check_chunk(np.array([0.5, 0.25]), replace(declaration, chunk=1)).tolist() == [[0.5, 0.25]]


@pytest.mark.parametrize(
    "answer",
    [None, [[0.0, 0.0]], np.zeros((3, 2), np.int64), np.zeros((4, 2)), np.zeros(2), np.full((3, 2), np.nan)],
    ids=str,
)
def test_a_wrong_answer_is_refused(declaration: Declaration, answer: Any) -> None:
    with pytest.raises(ServerFailed, match="'actions' of the server's answer"):
        check_chunk(answer, declaration)
