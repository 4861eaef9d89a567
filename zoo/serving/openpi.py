"""openpi's policy protocol: the server greets with metadata, then each observation is answered by a chunk.

As `openpi-client` 0.1.2 speaks it (websocket_client_policy.py, msgpack_numpy.py): msgpack with arrays under bytes keys,
a mapping per observation, a mapping with "actions" per answer; a text message means that the server failed. The words
are those of openpi's LIBERO example (examples/libero/main.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vla_gym.errors import BadValue, ServerFailed
from zoo.serving.declaration import METADATA_KEY
from zoo.serving.protocols import ClientSession, ServerSession, details_of
from zoo.serving.requests import Decision, NoiseKey, Request, make_request
from zoo.serving.wire import as_mapping, pack_openpi, unpack


class OpenpiServerSession(ServerSession):
    """See `ServerSession`; one decision per observation, the client plays the chunk."""

    NAMES: ClassVar[Mapping[str, str]] = {
        "image": "observation/image",
        "wrist_image": "observation/wrist_image",
        "state": "observation/state",
        "instruction": "prompt",
    }
    _details = False

    def greeting(self) -> bytes | None:
        stream = {"seed": self.stream.seed, "slot": self.stream.slot}
        text = self.declaration.text(self.names)
        return pack_openpi({METADATA_KEY: self.declaration.to_json(), "expects": text, "stream": stream})

    def receive(self, data: bytes) -> Request | bytes | None:
        values = as_mapping(unpack(data), "an observation")
        own = {key: values.get(name) for key, name in self.names.items()}
        request = make_request(own, values.get(METADATA_KEY), self.declaration, self.names, self.stream)
        self._details = request.details
        return request

    def answer(self, decision: Decision) -> bytes:
        reply = {"actions": decision.action_KA, "server_timing": {"infer_ms": 1000.0 * decision.seconds}}
        return pack_openpi(reply | ({METADATA_KEY: decision.details()} if self._details else {}))

    def refusal(self, reason: str) -> bytes | str:
        return reason


class OpenpiClientSession(ClientSession):
    """See `ClientSession`; episodes have no messages of their own."""

    def hello(self) -> bytes | None:
        return None

    def read_greeting(self, data: bytes | str) -> Mapping[str, Any]:
        metadata = _read(data, "greeting")
        self.server_is_ours = METADATA_KEY in metadata
        return metadata

    def episode(self, instruction: str) -> list[bytes]:
        return []

    def observation(self, obs: Mapping[str, Any], noise: NoiseKey, *, deterministic: bool) -> bytes:
        values = {self.names[key]: value for key, value in obs.items()}
        if self.server_is_ours:
            values[METADATA_KEY] = {"noise": noise.to_list(), "deterministic": deterministic}
        return pack_openpi(values)

    def read_answer(self, data: bytes | str) -> Mapping[str, Any]:
        answer = _read(data, "answer")
        return {"actions": answer.get("actions"), **details_of(answer)}


def _read(data: bytes | str, what: str) -> Mapping[str, Any]:
    if isinstance(data, str):
        raise ServerFailed(f"the policy server refused: {' '.join(data.split())[-300:]}")
    try:
        return as_mapping(unpack(data), f"the server's {what}")
    except BadValue as error:
        raise ServerFailed(f"the policy server's {what} cannot be read: {error}") from error
