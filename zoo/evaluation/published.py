"""Published result rows (`hyperparams/published.yml`): what was measured, how, from which weights, and beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from vla_gym.errors import BadValue, unknown_name
from vla_gym.registry import find_benchmark
from vla_gym.specs import Task
from zoo.config.evaluation import EvaluationProtocol
from zoo.config.hyperparams import acting_recipe, read_entries
from zoo.config.settings import Options, Settings
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.statistics import Rate, binomial_exact, mean_of_rates, overall_rate, rates_by_suite
from zoo.files import packaged_folder

FILE = "published.yml"
ANY_SUITE = "SUITE"
"""Stands in a recipe for the environment that the user chooses among the row's."""
Average = Literal["plain", "ood", "suites", "printed"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One printed number of a row."""

    label: str
    percent: float
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


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A line of a published table."""

    name: str
    model: str
    """In words."""
    source: str
    """Paper and page."""
    hardware: str
    """The source's."""
    protocol: EvaluationProtocol
    horizon: tuple[int, ...]
    """Policy steps of an episode, shortest first where tasks differ."""
    settle_steps: int
    """Steps before the policy sees anything."""
    grid: str
    """Start states, in words."""
    figures: tuple[Figure, ...]
    fresh_noise: bool = False
    """Whether every decision begins at noise that is drawn anew, as of flow and diffusion policies."""
    family: str | None = None
    """The model's family; None where it cannot be read here."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Environment id -> Hub id of the weights that gave the figure; empty where none were published."""
    recipe: Recipe | None = None
    """Algorithm that trains such a model here; None for rows that were not trained by reward, and for those whose
    source gives no recipe."""

    @property
    def envs(self) -> tuple[str, ...]:
        """Environments to evaluate, in the table's order."""
        return tuple(dict.fromkeys(env for figure in self.figures for env in figure.of))

    def start_policy(self, env: str) -> str:
        """Return `--policy` for the row's own weights; a recipe's start weights go by the family's bare name.

        Raises `BadValue` where none were published.
        """
        if env not in self.weights or self.family is None:
            suite = f" --env {env}" if self.recipe and self.recipe.env == ANY_SUITE else ""
            train = f"train them (vla-zoo train --published {self.name}{suite}), then " if self.recipe else ""
            raise BadValue(
                f"no weights of '{self.name}' ({self.model}) were published that can be read here: {train}give yours "
                "with -i RUN or --policy NAME"
            )
        block = acting_recipe(env, self.family).get("policy", {})
        return self.family if block.get("checkpoint") == self.weights[env] else self.weights[env]

    def reading(self, env: str) -> Settings:
        """Return the `policy_kwargs` with which the model acts: its family, and the denoising steps it trained by."""
        if self.family is None:
            return {}
        options = acting_recipe(env, self.family).get("policy_kwargs", {}).get("backbone_kwargs", {})
        steps = {name: options[name] for name in ("num_steps",) if name in options}
        steps |= {"eval_noise": "random"} if self.fresh_noise else {}
        return {"family": self.family, **({"backbone_kwargs": steps} if steps else {})}


@cache
def published_rows() -> Mapping[str, PublishedRow]:
    """Return name -> row, in the file's order."""
    where = f"hyperparams/{FILE}"
    content = read_entries(packaged_folder("hyperparams") / FILE, where)
    return {name: _row(name, values) for name, values in content["rows"].items()}


def find_published(name: str) -> PublishedRow:
    """Return the row; raises `UnknownName` with the nearest."""
    rows = published_rows()
    if name not in rows:
        raise unknown_name("published row", name, rows)
    return rows[name]


def _row(name: str, values: Options) -> PublishedRow:
    protocol = values["protocol"]
    horizon = protocol["horizon"]
    figures = tuple(
        Figure(**{**figure, "of": tuple(figure.get("of", ())), "suites": tuple(figure.get("suites", ()))})
        for figure in values["figures"]
    )
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
        fresh_noise=protocol.get("fresh_noise", False),
        family=values.get("family"),
        weights=dict.fromkeys(envs, weights) if isinstance(weights, str) else weights,
        recipe=None if recipe is None else Recipe(**dict(zip(("algo", "env", "policy"), recipe.split(), strict=True))),
    )


Measured = Mapping[str, tuple[Sequence[EpisodeRecord], Sequence[Task]]]
"""Environment id -> its episodes, and its tasks."""
_RULES = {
    "plain": "mean of the columns",
    "ood": "(5 vision + 7 semantic + 3 execution + in distribution) / 16",
    "suites": "unweighted mean of the suites",
    "printed": "by a rule that the source does not give",
}


def protocol_lines(
    row: PublishedRow,
    envs: Sequence[str] | None = None,
    episodes: int | None = None,
    options: Mapping[str, object] | None = None,
) -> list[str]:
    """Return how a row is measured, in those of its environments, on so many start states of each (None: its own).

    `options` are the user's, beside the row's.
    """
    protocol = row.protocol
    # Files that may be missing here are counted all the same.
    kwargs = {name: value for name, value in {**(options or {}), **protocol.env_kwargs}.items() if name != "stand_ins"}
    grid = {
        env: sum(task.num_trials for task in find_benchmark(env, **kwargs).tasks)
        for env in (row.envs if envs is None else envs)
    }
    whole = sum(protocol.start_states or number for number in grid.values())
    wanted = sum(min(number, episodes or protocol.start_states or number) for number in grid.values())
    part = "all of it" if wanted == whole else f"{wanted:,} of its {whole:,} start states"
    actions = "deterministic (do_sample false)"
    if protocol.sample:
        actions = f"sampled (do_sample true), temperature {protocol.temperature:g}"
    elif row.fresh_noise:
        actions = "from fresh noise in every decision, which follows from seed, start state, round and decision"
    horizon = "-".join(str(steps) for steps in (row.horizon[0], row.horizon[-1])[: len(row.horizon)])
    return [
        f"published    {row.name}: {row.model}",
        f"source       {row.source}",
        f"actions      {actions}",
        f"episodes     {protocol.rounds} x {wanted:,} start states = {protocol.rounds * wanted:,} episodes on "
        f"{', '.join(grid)} ({part})",
        f"grid         {row.grid}",
        f"horizon      {horizon} steps, {row.settle_steps} settle steps "
        f"({', '.join(f'{name} {value}' for name, value in protocol.env_kwargs.items())})",
    ]


def comparison_lines(row: PublishedRow, measured: Measured) -> list[str]:
    """Return a line for each printed figure: it, ours with k/n, and the exact binomial test against it."""
    width, ours = max(len(figure.label) for figure in row.figures), _ours(row, measured)
    lines = [f"published    ours       k/n    {'':<{width}}  {row.name}"]
    for figure in row.figures:
        head, label = f"{figure.percent:>8.2f}%", f"{figure.label:<{width}}"
        if figure.average is not None:
            mean = _average(figure, row, measured, {name: 100 * rate.mean for name, (rate, _) in ours.items()})
            shown = "  not computed" if mean is None else f"{mean:>9.2f}%          "
            lines.append(f"{head}  {shown}  {label}  ({_RULES[figure.average]})")
        elif figure.label not in ours:
            lines.append(f"{head}  {'not played':>20}  {label}")
        else:
            rate, p = ours[figure.label]
            played = sum(env in measured for env in figure.of)
            part = f", {played} of its {len(figure.of)} environments" if played < len(figure.of) else ""
            counts = f"{rate.successes}/{rate.episodes}"
            test = f"p = {p:.2g} (exact binomial, two-sided){part}"
            lines.append(f"{head}  {100 * rate.mean:>8.2f}%  {counts:>9}  {label}  {test}")
    if row.protocol.rounds > 1:
        lines.append(
            f"p counts the {row.protocol.rounds} rounds of a start state as independent, which they are not quite"
        )
    return lines


def _ours(row: PublishedRow, measured: Measured) -> dict[str, tuple[Rate, float]]:
    """Return label -> our rate and the p of the printed one, of the figures that were played and are no averages."""
    found = {}
    for figure in (figure for figure in row.figures if figure.average is None):
        played = [measured[env] for env in figure.of if env in measured]
        counted = [
            one
            for episodes, tasks in played
            for one in episodes
            if not figure.suites or tasks[one.task_id].suite in figure.suites
        ]
        if counted:
            rate = overall_rate(counted)
            found[figure.label] = rate, binomial_exact(rate.successes, rate.episodes, figure.percent / 100)
    return found


def _average(figure: Figure, row: PublishedRow, measured: Measured, ours: Mapping[str, float]) -> float | None:
    """Return our average in per cent; None where a part of it was not played, or its rule is not known."""
    if not measured.keys() >= set(row.envs) or len(ours) < sum(one.average is None for one in row.figures):
        return None
    if figure.average == "plain":
        return statistics.fmean(ours.values())
    if figure.average == "suites":
        (episodes, tasks) = measured[figure.of[0]]
        rates = rates_by_suite(episodes, tasks)
        return 100 * mean_of_rates(rates) if len(rates) == len({task.suite for task in tasks}) else None
    if figure.average == "ood":
        weights = {"vision": 5, "semantic": 7, "execution": 3, "in distribution": 1}
        return sum(weight * ours[label] for label, weight in weights.items()) / 16
    return None


def comparison_record(row: PublishedRow, measured: Measured) -> Settings:
    """Return the figures beside ours as JSON values."""
    figures: list[Settings] = [{"label": figure.label, "published": figure.percent} for figure in row.figures]
    for entry in figures:
        if found := _ours(row, measured).get(entry["label"]):
            rate, p = found
            entry |= {"successes": rate.successes, "episodes": rate.episodes, "percent": 100 * rate.mean, "p": p}
    return {"name": row.name, "source": row.source, "figures": figures}
