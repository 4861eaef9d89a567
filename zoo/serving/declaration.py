"""A policy that is to be served: its declaration, which clients get and both ends check, and how it is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.observation import LARGEST_IMAGE, SMALLEST_IMAGE, check_instruction
from vla_gym.reading import read_text
from vla_gym.specs import Benchmark
from vla_policies.conventions import Conventions, check_compatible, check_lengths
from vla_policies.resolver import PolicyRef
from zoo.config.settings import Options, Settings
from zoo.serving.wire import Payload

METADATA_KEY = "vla_zoo"
"""Key of the declaration in a server's greeting, and of our own clients' additions to a request."""
LARGEST_STATE = 1e6
"""Largest number of a state: metres and radians are far below it, and networks overflow far above it."""
LEAST_MESSAGE = 4 * 2**20
"""Bytes that any message may have, so that an image of the wrong size is answered with its reason."""
SHORTEST_TOKEN = 16
"""Fewest characters of a token; 16 random ones cannot be guessed over a network."""


@dataclass(frozen=True, kw_only=True)
class Declaration(Conventions):
    """Observations and actions of one served policy, and more that clients ask for.

    Images are square, uint8 `[H, W, 3]`, one for each camera.
    """

    policy: str
    """Name of the policy, for reports."""
    family: str = ""
    """Its family; "" where the server is not ours."""
    env: str | None = None
    """Environment id it was trained in, where that is known."""
    env_options: Options = field(default_factory=dict)
    """Keyword arguments of `make_vec` that give the observations it was trained on."""
    any_image_size: bool = False
    """Whether images of another size are accepted and resized by the policy's own processor."""
    state: str = ""
    """Layout of the proprioceptive vector in words; "" where it is not known."""
    horizon: int | None = None
    """Actions in an answer, where those are more than `chunk`; the rest is not played."""
    control_hz: float | None = None
    """Actions per second of the simulator it was trained in."""
    deterministic: bool = True
    """Whether actions are deterministic unless a request says otherwise."""
    selection: Mapping[str, str] = field(default_factory=dict)
    """How actions are selected, in words: "deterministic" and "sampled"."""
    weights_sha256: str | None = None
    """SHA-256 of the weights, as `vla-zoo evaluate` writes it."""
    read_as: Options = field(default_factory=dict)
    """How the policy is read, and of which weights it is; `zoo.runs.evaluations.policy_record`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not SMALLEST_IMAGE <= self.image_size <= LARGEST_IMAGE or self.answer_length < self.chunk:
            raise BadValue(
                f"a served policy has image_size in {SMALLEST_IMAGE} .. {LARGEST_IMAGE} and horizon >= chunk, got "
                f"{self.image_size}, and {self.horizon} of {self.chunk}"
            )

    @property
    def answer_length(self) -> int:
        """Actions in one answer."""
        return self.horizon or self.chunk

    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and dtype of each array of an observation."""
        side = self.image_size
        arrays: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(self.cameras, ((side, side, 3), "uint8"))
        return arrays | ({"state": ((self.state_dim,), "float32")} if self.state_dim else {})

    def text(self, names: Mapping[str, str]) -> str:
        """Return the observation and the answer in one line; `names` are the wire's words for our keys."""
        size = "[H, H, 3]" if self.any_image_size else None
        parts = [
            f"{names[key]!r}: {dtype} {size if size and len(shape) == 3 else list(shape)}"
            for key, (shape, dtype) in self.fields().items()
        ]
        parts.append(f"{names['instruction']!r}: text")
        return f"{{{', '.join(parts)}}} -> 'actions': float32 [{self.chunk}, {self.action_dim}] in [-1, 1]"

    def options(self) -> Settings:
        """Return the keyword arguments of `make_vec` for an environment this policy can act in."""
        wanted = {"chunk": self.chunk, "image_size": self.image_size, "wrist_camera": "wrist_image" in self.cameras}
        return {**wanted, **self.env_options}

    def message_bytes(self) -> int:
        """Return the most bytes of a client's message: `LEAST_MESSAGE`, or twice an observation where that is more."""
        side = LARGEST_IMAGE if self.any_image_size else self.image_size
        return max(LEAST_MESSAGE, 2 * len(self.cameras) * side * side * 3 + 8 * self.state_dim + 65_536)

    def check_observation(self, values: Payload, names: Mapping[str, str]) -> Payload:
        """Return one observation under our keys, checked; `names` are the wire's words, used in messages.

        Raises `BadValue` for a missing key, a wrong shape or dtype, numbers that are not finite, and an instruction
        that is empty or too long. Other keys are left out.
        """
        checked: dict[str, np.ndarray] = {}
        for key, (shape, dtype) in self.fields().items():
            value = values.get(key)
            if not isinstance(value, np.ndarray):
                raise BadValue(f"the observation lacks the array {names[key]!r}; expected {self.text(names)}")
            check = self._image if dtype == "uint8" else self._state
            checked[key] = check(value, shape, names[key])
        instruction = values.get("instruction")
        if not isinstance(instruction, str):
            raise BadValue(f"the observation lacks the text {names['instruction']!r}; expected {self.text(names)}")
        check_instruction(instruction)
        return {**checked, "instruction": instruction}

    def _image(self, value: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
        if self.any_image_size and value.ndim and SMALLEST_IMAGE <= len(value) <= LARGEST_IMAGE:
            shape = (len(value), len(value), 3)
        if value.shape != shape or value.dtype != np.uint8:
            wanted = "a square image [H, H, 3]" if self.any_image_size else f"{list(shape)}"
            raise BadValue(f"{name!r} must be {wanted}, uint8, got {list(value.shape)}, {value.dtype}")
        return value

    def _state(self, value: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
        if value.shape != shape or value.dtype.kind != "f":
            raise BadValue(f"{name!r} must be {list(shape)}, floating point, got {list(value.shape)}, {value.dtype}")
        if not (np.abs(value) <= LARGEST_STATE).all():
            raise BadValue(f"{name!r} holds numbers beyond {LARGEST_STATE:g}, or that are not finite")
        return value.astype(np.float32)

    def check_environment(self, benchmark: Benchmark, options: Options) -> None:
        """Raise `BadValue` where an environment, made with `options`, is not one that this policy can act in."""
        wanted = self.lengths | ({} if self.any_image_size else {"image_size": self.image_size})
        state_dim = benchmark.state_dim if options.get("state", True) else 0
        check_lengths(wanted, {**options, "state_dim": state_dim, "action_dim": benchmark.action_dim})
        if self.action_spec is None:
            raise BadValue(
                f"the server does not say how the actions of {self.policy} are written; state action_spec "
                "in --server-conf FILE, see docs/serving.md"
            )
        check_compatible(benchmark.action_spec, self.action_spec)
        given = set(benchmark.cameras) if options.get("wrist_camera") else set(benchmark.cameras[:1])
        if missing := [key for key in self.cameras if key not in given]:
            raise BadValue(f"the served policy looks at {list(self.cameras)}; {benchmark.id} gives no {missing[0]}")
        layout = str(benchmark.protocol.get("state", ""))
        if self.state_dim and self.state and layout and self.state != layout:
            raise BadValue(f"the served policy's state is '{self.state}', that of {benchmark.id} is '{layout}'")


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """A policy to serve; nothing heavy has been loaded for it."""

    name: str
    """As the user named it, for reports."""
    policy: PolicyRef
    """The policy."""
    env: str | None
    """Environment id it was trained in, or is to act in; None where that is not known."""
    env_options: Options
    """Keyword arguments of `make_vec` that give its observations."""
    policy_kwargs: Options = field(default_factory=dict)
    """Keyword arguments of `VLAPolicy.from_pretrained` that say how the policy is opened."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How a policy is served."""

    token: str | None = None
    """Token that clients must show; None admits everybody."""
    window: float = 0.004
    """Longest time a request waits for others to share its batch, seconds."""
    max_batch: int = 32
    """Most requests decided together."""
    max_clients: int = 256
    """Most connections that are open at once."""
    idle_seconds: float = 600.0
    """How long a connection may be silent, or leave an answer unread."""
    seed: int = 0
    """Seed of the clients' random numbers."""


def read_token(path: Path) -> str:
    """Return the token in a file, its one line; raises `BadValue`."""
    lines = read_text(path, most=4096).split()
    if len(lines) != 1 or len(lines[0]) < SHORTEST_TOKEN or not lines[0].isascii():
        raise BadValue(
            f"--token-file {path} must hold one line of at least {SHORTEST_TOKEN} ASCII characters, no spaces; "
            "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return lines[0]
