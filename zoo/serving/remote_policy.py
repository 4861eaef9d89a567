"""A served policy behind the methods of `VLAPolicy` that evaluating, filming and collecting call."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import ServerFailed
from vla_policies.actions.noise import TORCH_NOISE, EpisodeNoise, Noise, SlotNoise
from vla_policies.conventions import Conventions
from vla_policies.types import ActionSample
from zoo.serving.address import ServerAddress
from zoo.serving.client import PolicyConnection
from zoo.serving.declaration import Declaration
from zoo.serving.protocols import ClientSession, check_chunk
from zoo.serving.requests import NoiseKey


@dataclass(frozen=True)
class _Row:
    """One row of a batch: a decision of an episode."""

    episode: tuple[int, ...]
    """Tells the episode from those beside it."""
    begins: bool
    """Whether it is the episode's first decision."""
    noise: NoiseKey
    """Its random numbers."""


class RemotePolicy:
    """One connection for each episode under way, all asked at once, so that the server can share batches among them.

    Deterministic actions and samples are those of the policy loaded here, since the noise is named to the server; a
    server that is not ours selects its actions as it likes.
    """

    def __init__(self, address: ServerAddress, declaration: Declaration) -> None:
        self.declaration = declaration
        self.conventions = Conventions(
            cameras=declaration.cameras,
            image_size=declaration.image_size,
            state_dim=declaration.state_dim,
            chunk=declaration.chunk,
            action_dim=declaration.action_dim,
            action_spec=declaration.action_spec,
        )
        self._address = address
        # Our own servers, which declare their policy, answer with log-probabilities and values, too.
        self._tells_values = address.conf.policy is None
        self._connections: list[PolicyConnection] = []
        self._place: dict[tuple[int, ...], int] = {}
        """Episode -> its connection."""
        self._close = weakref.finalize(self, _close_all, self._connections)

    def action_selection_text(self, *, deterministic: bool) -> str:
        """As `VLAPolicy.action_selection_text`."""
        kind = "deterministic" if deterministic else "sampled"
        return self.declaration.selection.get(kind, f"{kind} actions, as {self._address.url} selects them")

    def predict(
        self,
        observation: Mapping[str, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """Action chunks `[B, K, A]`, each as of an episode's first decision; see `predict_with_noise`."""
        slot_B = np.arange(len(observation["instruction"]))
        return self.predict_with_noise(observation, SlotNoise(0, (0, 0), slot_B), deterministic=deterministic), state

    def predict_with_noise(
        self, observation: Mapping[str, Any], noise: Noise, *, deterministic: bool = False
    ) -> np.ndarray:
        """As `VLAPolicy.predict_with_noise`, of an `EpisodeNoise` or `SlotNoise`; raises `ServerFailed`."""
        answers = self._ask(observation, _rows(noise), deterministic=deterministic)
        return np.stack([check_chunk(answer, self.declaration) for answer in answers])

    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        """As `VLAPolicy.act`; zeros stand for the values and log-probabilities that a server does not tell."""
        answers = self._ask(obs, _rows(noise), deterministic=deterministic)
        chunks = np.stack([check_chunk(answer, self.declaration) for answer in answers])
        return ActionSample(
            action_BKA=torch.from_numpy(chunks),
            logprob_BKA=torch.from_numpy(np.stack([self._logprobs(answer) for answer in answers])),
            value_B=torch.tensor([self._value(answer) for answer in answers]),
        )

    def predict_values(self, obs: Mapping[str, Any]) -> Tensor:
        """State values `[B, 1]`."""
        slot_B = np.arange(len(obs["instruction"]))
        answers = self._ask(obs, _rows(SlotNoise(0, (0, 0), slot_B), begins=False), deterministic=True)
        return torch.tensor([[self._value(answer)] for answer in answers])

    def close(self) -> None:
        """Close all connections."""
        self._close()

    def _ask(self, obs: Mapping[str, Any], rows: Sequence[_Row], *, deterministic: bool) -> list[Mapping[str, Any]]:
        asked = []
        for index, (row, connection) in enumerate(zip(rows, self._connections_of(rows), strict=True)):
            connection.ask(_Question(self._observation(obs, index), row, deterministic).messages)
            asked.append(connection)
        return [connection.answer() for connection in asked]

    def _connections_of(self, rows: Sequence[_Row]) -> list[PolicyConnection]:
        """Each episode keeps its connection; a new one takes that of an episode that is over."""
        here = {row.episode for row in rows}
        if len(here) != len(rows):
            raise ValueError("two rows of a batch are of one episode")
        self._place = {episode: place for episode, place in self._place.items() if episode in here}
        free = iter(sorted(set(range(len(rows) + len(self._connections))) - set(self._place.values())))
        for row in rows:
            if row.episode not in self._place:
                self._place[row.episode] = next(free)
        while len(self._connections) <= max(self._place.values()):
            self._connections.append(PolicyConnection(self._address, self.declaration))
        return [self._connections[self._place[row.episode]] for row in rows]

    def _observation(self, obs: Mapping[str, Any], index: int) -> dict[str, Any]:
        """One observation as the policy reads it."""
        arrays = {key: np.ascontiguousarray(obs[key][index]) for key in self.declaration.fields()}
        return {**arrays, "instruction": str(obs["instruction"][index])}

    def _logprobs(self, answer: Mapping[str, Any]) -> np.ndarray:
        shape = (self.declaration.chunk, self.declaration.action_dim)
        if not self._tells_values:
            return np.zeros(shape, dtype=np.float32)
        logprob = answer.get("logprob")
        if not isinstance(logprob, np.ndarray) or logprob.shape != shape:
            raise ServerFailed(f"the policy server {self._address.url} sent no log-probabilities {list(shape)}")
        return logprob.astype(np.float32)

    def _value(self, answer: Mapping[str, Any]) -> float:
        value = answer.get("value", None if self._tells_values else 0.0)
        if not isinstance(value, (int, float)):
            raise ServerFailed(f"the policy server {self._address.url} sent no value")
        return float(value)


class _Question:
    """A request, built for whichever connection carries it: on a new one the episode begins again."""

    def __init__(self, obs: Mapping[str, Any], row: _Row, deterministic: bool) -> None:
        self._obs, self._row, self._deterministic = obs, row, deterministic
        self._session: ClientSession | None = None

    def messages(self, session: ClientSession) -> list[bytes]:
        """Return the messages of the request; the last is answered."""
        again = self._session not in (None, session)
        self._session = session
        first = session.episode(self._obs["instruction"]) if self._row.begins or again else []
        return [*first, session.observation(self._obs, self._row.noise, deterministic=self._deterministic)]


def _rows(noise: Noise, *, begins: bool = True) -> list[_Row]:
    """The decisions whose numbers `noise` gives; the first decision of an episode is number 0."""
    if isinstance(noise, EpisodeNoise):
        return [
            _Row(
                episode=(row.task_id, row.trial_id, row.round),
                begins=begins and row.decision == 0,
                noise=NoiseKey(seed=noise.seed, numbers=tuple(row)),
            )
            for row in noise.decisions
        ]
    if not isinstance(noise, SlotNoise):
        raise ValueError("a remote policy's noise must be one that can be named: EpisodeNoise or SlotNoise")
    return [
        _Row(
            episode=(slot,),
            begins=begins and noise.decision[1] == 0,
            noise=NoiseKey(seed=noise.seed, numbers=(*noise.decision, slot)),
        )
        for slot in noise.slot_N.tolist()
    ]


def _close_all(connections: Sequence[PolicyConnection]) -> None:
    for connection in connections:
        connection.close()
