"""openpi's policy protocol: the server greets with metadata, then each observation is answered by a chunk.

As `openpi-client` 0.1.2 speaks it (websocket_client_policy.py, msgpack_numpy.py): msgpack with arrays under bytes keys,
a mapping per observation, a mapping with "actions" per answer; a text message means that the server failed. The words
are those of openpi's LIBERO example (examples/libero/main.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from vla_gym.errors import ServerFailed
from vla_policies.checkpoint_io.json_records import to_json
from zoo.serving.declaration import METADATA_KEY
from zoo.serving.protocols import ActionRequest, ClientSession, NoiseKey, ServerSession
from zoo.serving.wire import Payload, as_mapping, pack_openpi, unpack


class OpenpiClientSession(ClientSession):
    """See `ClientSession`; episodes have no messages of their own."""

    def observation(self, obs: Payload, noise: NoiseKey, *, deterministic: bool) -> bytes:
        values = {self.names[key]: value for key, value in obs.items()}
        if self.server_is_ours:
            values[METADATA_KEY] = {"noise": list(noise), "deterministic": deterministic}
        return pack_openpi(values)

    def payload(self, data: bytes | str, wanted: str) -> Payload:
        if isinstance(data, str):
            raise ServerFailed(f"the policy server refused: {' '.join(data.split())[-300:]}")
        return as_mapping(unpack(data), "a server's message")


class OpenpiServerSession(ServerSession):
    """See `ServerSession`; one decision per observation, the client plays the chunk."""

    CLIENT = OpenpiClientSession

    NAMES: ClassVar[Mapping[str, str]] = {
        "image": "observation/image",
        "wrist_image": "observation/wrist_image",
        "state": "observation/state",
        "instruction": "prompt",
    }

    def greeting(self) -> bytes | None:
        expects = self.declaration.text(self.names)
        return pack_openpi({METADATA_KEY: to_json(self.declaration), "expects": expects, "stream": self.stream})

    def receive(self, data: bytes) -> ActionRequest | bytes | None:
        values = as_mapping(unpack(data), "an observation")
        return self.request({key: values.get(name) for key, name in self.names.items()}, values.get(METADATA_KEY))

    def answer(self, action_KA: np.ndarray, seconds: float) -> bytes:
        return pack_openpi({"actions": action_KA, "server_timing": {"infer_ms": 1000.0 * seconds}})

    def refusal(self, reason: str) -> bytes | str:
        return reason
