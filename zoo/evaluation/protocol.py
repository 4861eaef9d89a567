"""How success is measured, the weights aside: the record that flags and published rows fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vla_gym.errors import BadValue


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol:
    """Settings that two success rates must share to be compared."""

    sample: bool = False
    """Draw actions from the policy's distribution, instead of its deterministic ones."""
    temperature: float | None = None
    """Of drawn action tokens, > 0; None = the policy's own."""
    top_k: int | None = None
    """Draw among the k likeliest tokens, 0 = all; None = the policy's own."""
    rounds: int = 1
    """Episodes of every start state, each with noise of its own."""
    start_states: int | None = None
    """Number of start states, as `choose_start_states` spreads them over the tasks; None = the whole grid."""
    split: str | None = None
    """Split of the start states; None = the run's or the recipe's."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The benchmark's own options; its `protocol` sets horizons and settle steps."""

    def __post_init__(self) -> None:
        """Raises `BadValue` for numbers that cannot be, and for settings of drawn actions where none are drawn."""
        if not (self.temperature is None or self.temperature > 0) or (self.top_k or 0) < 0 or self.rounds < 1:
            raise BadValue(
                f"temperature must be > 0, top_k >= 0 (0 = all tokens) and rounds >= 1, got {self.temperature}, "
                f"{self.top_k} and {self.rounds}"
            )
        if not self.sample and self.sampling:
            raise BadValue("temperature and top_k are of sampled actions, and these are to be deterministic")

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings of `VLAPolicy` that stand above the checkpoint's."""
        given = {"temperature": self.temperature, "top_k": self.top_k}
        return {name: value for name, value in given.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """JSON values, for `protocol` in an evaluation's record and in a run folder."""
        return asdict(self)
