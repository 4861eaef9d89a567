"""Published result rows as data (`hyperparams/published.yml`): what was measured, how, from which weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from vla_gym.errors import BadValue, unknown_name
from zoo.config.hyperparams import acting_recipe, read_entries
from zoo.evaluation.protocol import EvaluationProtocol
from zoo.files import packaged_folder

FILE = "published.yml"
ANY_SUITE = "SUITE"
"""Stands in a recipe for the environment that the user chooses among the row's."""
Average = Literal["plain", "ood", "suites", "printed"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One printed number of a row."""

    label: str
    """Heading of its column."""
    percent: float
    """As printed."""
    of: tuple[str, ...] = ()
    """Environment ids whose episodes it counts."""
    suites: tuple[str, ...] = ()
    """Suites of them; () = all."""
    average: Average | None = None
    """Rule of an average of the figures before it, or of the environment's suites; None = a success rate."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe of `hyperparams/<algo>.yml`."""

    algo: str
    env: str
    """Environment id, or `ANY_SUITE`."""
    policy: str
    """Family."""


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A line of a published table."""

    name: str
    model: str
    """In words."""
    source: str
    """Paper and page."""
    hardware: str
    """What the source trained on."""
    protocol: EvaluationProtocol
    """How it was measured."""
    horizon: tuple[int, ...]
    """Policy steps of an episode, shortest first where tasks differ."""
    settle_steps: int
    """Steps before the policy sees anything."""
    grid: str
    """Start states, in words."""
    figures: tuple[Figure, ...]
    family: str | None = None
    """The model's family; None where it cannot be read here."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Environment id -> Hub id of the weights that gave the figure; empty where none were published."""
    recipe: Recipe | None = None
    """What trains such a model here; None for rows that were not trained by reward."""
    reproduced: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Figure's label -> successes, episodes and date of a reproduction here."""

    @property
    def envs(self) -> tuple[str, ...]:
        """Environments to evaluate, in the table's order."""
        return tuple(dict.fromkeys(env for figure in self.figures for env in figure.of))

    def start_policy(self, env: str) -> str:
        """What `--policy` is for the row's own weights; a recipe's start weights go by the family's bare name.

        Raises `BadValue` where none were published.
        """
        if env not in self.weights or self.family is None:
            suite = f" --env {env}" if self.recipe and self.recipe.env == ANY_SUITE else ""
            train = f"train them (python -m zoo.train --published {self.name}{suite}), then " if self.recipe else ""
            raise BadValue(
                f"no weights of '{self.name}' ({self.model}) were published that can be read here: {train}give yours "
                "with -i RUN or --policy NAME"
            )
        block = acting_recipe(env, self.family).get("policy", {})
        return self.family if block.get("checkpoint") == self.weights[env] else self.weights[env]

    def reading(self, env: str) -> dict[str, Any]:
        """Return the `policy_kwargs` with which the model acts: its family, and the denoising steps it trained by."""
        if self.family is None:
            return {}
        options = acting_recipe(env, self.family).get("policy_kwargs", {}).get("backbone_kwargs", {})
        steps = {name: options[name] for name in ("num_steps",) if name in options}
        return {"family": self.family, **({"backbone_kwargs": steps} if steps else {})}


@cache
def published_rows() -> Mapping[str, PublishedRow]:
    """Return name -> row, in the file's order."""
    where = f"hyperparams/{FILE}"
    content = read_entries(packaged_folder("hyperparams") / FILE, where)
    reproduced = content["reproduced"]
    return {name: _row(name, values, reproduced.get(name, {})) for name, values in content["rows"].items()}


def find_published(name: str) -> PublishedRow:
    """Return the row; raises `UnknownName` with the nearest."""
    rows = published_rows()
    if name not in rows:
        raise unknown_name("published row", name, rows)
    return rows[name]


def _row(name: str, values: Mapping[str, Any], reproduced: Mapping[str, Any]) -> PublishedRow:
    protocol = values["protocol"]
    horizon = protocol["horizon"]
    figures = tuple(_figure(figure) for figure in values["figures"])
    envs = dict.fromkeys(env for figure in figures for env in figure.of)
    weights, recipe = values.get("weights", {}), values.get("recipe")
    return PublishedRow(
        name=name,
        model=values["model"],
        source=values["source"],
        hardware=values["hardware"],
        protocol=EvaluationProtocol(
            **{key: protocol[key] for key in ("sample", "temperature", "rounds", "env_kwargs")},
            start_states=protocol.get("start_states"),
        ),
        horizon=tuple(horizon) if isinstance(horizon, list) else (horizon,),
        settle_steps=protocol["settle_steps"],
        grid=protocol["grid"],
        figures=figures,
        family=values.get("family"),
        weights=dict.fromkeys(envs, weights) if isinstance(weights, str) else weights,
        recipe=None if recipe is None else Recipe(**dict(zip(("algo", "env", "policy"), recipe.split(), strict=True))),
        reproduced=reproduced,
    )


def _figure(values: Mapping[str, Any]) -> Figure:
    of: Sequence[str] = values.get("of", ())
    return Figure(
        label=values["label"],
        percent=float(values["percent"]),
        of=tuple(of),
        suites=tuple(values.get("suites", ())),
        average=values.get("average"),
    )
