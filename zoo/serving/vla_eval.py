"""vla-eval's protocol: HELLO both ways, EPISODE_START, then an ACTION for every OBSERVATION, one per simulator step.

As `vla-eval` 0.8.0 speaks it (connection.py, protocol/messages.py, model_servers/serve.py, specs.py): msgpack mappings
with type, payload, seq and timestamp, arrays under text keys, images as PNG by default. Benchmarks play single
actions, so the server keeps the chunk and the position in it; EPISODE_START drops the rest of a chunk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from vla_gym.errors import BadValue, ServerFailed
from vla_gym.plugins.vla_eval_names import NAMES, action_parts, state_format
from vla_policies.checkpoint_io.json_records import to_json
from vla_policies.conventions import CAMERA_KEYS
from zoo.serving.declaration import METADATA_KEY, Declaration
from zoo.serving.protocols import ActionRequest, ClientSession, NoiseKey, ServerSession
from zoo.serving.wire import Payload, as_mapping, pack_vla_eval, unpack

PROTOCOL_VERSION = 1
_SERVER_NAME = "vla-zoo"
_TYPES = ("hello", "observation", "action", "episode_start", "episode_end", "error")
_OTHER_STATE = "state"
"""vla-eval's LIBERO benchmark writes "states", its other benchmarks "state"."""


class VlaEvalClientSession(ClientSession):
    """See `ClientSession`; of our servers it asks for whole chunks."""

    _seq = 0
    _in_episode = False

    def hello(self) -> bytes | None:
        return self._send("hello", {"harness_version": _SERVER_NAME, "protocol_version": PROTOCOL_VERSION})

    def episode(self, instruction: str) -> list[bytes]:
        ended = [self._send("episode_end", {})] if self._in_episode else []
        self._in_episode = True
        return [*ended, self._send("episode_start", {"task": {"name": instruction}})]

    def observation(self, obs: Payload, noise: NoiseKey, *, deterministic: bool) -> bytes:
        images = {self.names[key]: obs[key] for key in CAMERA_KEYS if key in obs}
        others = {self.names[key]: obs[key] for key in ("state", "instruction") if key in obs}
        extras = {METADATA_KEY: {"noise": list(noise), "deterministic": deterministic, "chunk": True}}
        return self._send("observation", {"images": images, **others, **(extras if self.server_is_ours else {})})

    def payload(self, data: bytes | str, wanted: str) -> Payload:
        if isinstance(data, str):
            raise BadValue("a text message")
        kind, payload, _ = _read_message(data)
        if kind == "error":
            reason = " ".join(str(payload.get("error", payload)).split())
            raise ServerFailed(f"the policy server refused: {reason[:300]}")
        if kind != wanted:
            raise ServerFailed(f"the policy server answered with a message of type '{kind}' instead of '{wanted}'")
        return payload

    def _send(self, kind: str, payload: Payload) -> bytes:
        self._seq += 1
        return _message(kind, payload, self._seq)


class VlaEvalServerSession(ServerSession):
    """See `ServerSession`; a decision per K observations."""

    CLIENT = VlaEvalClientSession

    NAMES: ClassVar[Mapping[str, str]] = NAMES

    _seq = 0
    _chunk_KA: np.ndarray | None = None
    _position = 0
    _asked: ActionRequest | None = None

    def receive(self, data: bytes) -> ActionRequest | bytes | None:
        kind, payload, self._seq = _read_message(data)
        if kind == "hello":
            return _message("hello", self._hello(), self._seq)
        if kind in ("episode_start", "episode_end"):
            self._chunk_KA = None
            return None
        if kind != "observation":
            raise BadValue(f"a message of type '{kind}' is not for a policy server")
        return self._observation(payload)

    def answer(self, action_KA: np.ndarray, seconds: float) -> bytes:
        assert self._asked is not None
        if self._asked.whole_chunk:
            return _message("action", {"actions": action_KA}, self._seq)
        self._chunk_KA, self._position = action_KA, 0
        return self._next_action()

    def refusal(self, reason: str) -> bytes | str:
        return _message("error", {"error": reason}, self._seq)

    def _observation(self, payload: Payload) -> ActionRequest | bytes:
        images = as_mapping(payload.get("images", {}), "'images' of an observation")
        own = {key: (images if key in CAMERA_KEYS else payload).get(name) for key, name in self.names.items()}
        if own["state"] is None and self.names["state"] == self.NAMES["state"]:
            own["state"] = payload.get(_OTHER_STATE)
        if self._chunk_KA is not None:
            self.declaration.check_observation(own, self.names)
            return self._next_action()
        self._asked = self.request(own, payload.get(METADATA_KEY))
        return self._asked

    def _next_action(self) -> bytes:
        assert self._chunk_KA is not None
        payload = {"actions": self._chunk_KA[self._position], "chunk_position": self._position}
        self._position += 1
        if self._position == len(self._chunk_KA):
            self._chunk_KA = None
        return _message("action", payload, self._seq)

    def _hello(self) -> Payload:
        cameras = self.declaration.cameras
        return {
            "harness_version": _SERVER_NAME,
            "protocol_version": PROTOCOL_VERSION,
            "model_server": f"{_SERVER_NAME} {self.declaration.policy}",
            "capabilities": {},
            "observation_params": {
                **({"send_wrist_image": True} if "wrist_image" in cameras else {}),
                **({"send_state": True} if self.declaration.state_dim else {}),
            },
            "action_spec": action_spec(self.declaration),
            "observation_spec": observation_spec(self.declaration, self.names),
            METADATA_KEY: to_json(self.declaration),
            "stream": self.stream,
        }


def action_spec(declaration: Declaration) -> dict[str, dict[str, object]]:
    """Return the actions in the words of vla-eval's `DimSpec`, which its runs compare with the benchmark's."""
    return action_parts(declaration.action_spec, declaration.action_dim)


def observation_spec(declaration: Declaration, names: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the observation in the words of vla-eval's `DimSpec`."""
    parts = {names[key]: {"name": "image", "dims": 0, "format": "rgb_hwc_uint8"} for key in declaration.cameras}
    if declaration.state_dim:
        parts["state"] = {"name": "state", "dims": declaration.state_dim, "format": state_format(declaration.state)}
    return {**parts, "language": {"name": "language", "dims": 0, "format": "language"}}


def _message(kind: str, payload: Payload, seq: int) -> bytes:
    return pack_vla_eval({"type": kind, "payload": dict(payload), "seq": seq, "timestamp": time.time()})


def _read_message(data: bytes) -> tuple[str, Payload, int]:
    message = as_mapping(unpack(data), "a message")
    kind, seq = message.get("type"), message.get("seq")
    if kind not in _TYPES or not isinstance(seq, int) or "payload" not in message:
        raise BadValue(f"a message has type ({', '.join(_TYPES)}), payload and seq, got {sorted(message)[:6]}")
    return kind, as_mapping(message["payload"], "payload of a message"), seq
