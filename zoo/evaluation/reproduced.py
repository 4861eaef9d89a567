"""Reproduced rows (`results/*.json`): a published row as somebody measured it here, checked before it is written."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from vla_gym import reading
from vla_gym.errors import BadValue, shown
from vla_gym.registry import find_benchmark
from vla_gym.specs import Task
from zoo.config.settings import Options, annotations_of, check_fields
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.published import Measured, PublishedRow, comparison_record, find_published
from zoo.files import content_of, packaged_folder, write_text

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Counts(TypedDict):
    """Episodes of one figure."""

    successes: int
    episodes: int


class Weights(TypedDict):
    """Weights of one environment."""

    policy: str
    """Hub id, or a run's or folder's name."""
    commit: str | None
    """The Hub's; None of a folder."""
    sha256: str
    """Of all files of weights."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A file of `results/`. `results/schema.json` says the same to other programs."""

    row: str
    """Name of the published row."""
    figures: Mapping[str, Counts]
    """Figure's label -> what was counted; averages are left out."""
    whole: bool
    """Whether every episode of the row's protocol was played."""
    weights: Mapping[str, Weights]
    """Environment id -> what was played."""
    seed: int
    """Of the noise."""
    machine: str
    """Cores, memory and GPU."""
    versions: Mapping[str, str]
    """Package -> version."""
    result_sha256: str
    """SHA-256 of the file that `vla-zoo evaluate --published` wrote."""
    date: str
    """Day of the submission, YYYY-MM-DD."""

    @property
    def file_name(self) -> str:
        """Name in `results/`; another measurement has another."""
        return f"{self.row}-{self.result_sha256[:8]}.json"

    @property
    def summary(self) -> str:
        """Each figure as k/n, and the machine."""
        counts = ", ".join(f"{label} {one['successes']}/{one['episodes']}" for label, one in self.figures.items())
        return f"{counts} ({self.machine})"

    def reproduces(self, row: PublishedRow) -> bool:
        """Whether it is the whole row, played with the weights that were published for it."""
        return self.whole and all(
            one["commit"] is not None and env in row.weights and one["policy"].split("@")[0] == row.start_policy(env)
            for env, one in self.weights.items()
        )


def reproductions(folder: Path | None = None) -> Mapping[str, Sequence[Reproduction]]:
    """Return row -> its measurements, those of `results/` unless a folder is given."""
    found: dict[str, list[Reproduction]] = {}
    known = annotations_of(Reproduction)
    for file in sorted((folder or packaged_folder("results")).glob("*-????????.json")):
        with content_of(file):
            one = Reproduction(**check_fields(known, reading.read_json_object(file), str(file)))
            found.setdefault(find_published(one.row).name, []).append(one)
    return found


def submit(file: Path, folder: Path) -> Path:
    """Check a result of `vla-zoo evaluate --published`, write its row into `folder` and return the row's path."""
    one = reproduction_of(file)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / one.file_name, json.dumps(dataclasses.asdict(one), indent=2) + "\n")
    return folder / one.file_name


def reproduction_of(file: Path) -> Reproduction:
    """Return the row of a result; raises `BadValue` where its figures, episodes or hashes do not agree."""
    content = reading.read_json_object(file)
    with content_of(file):
        row, records = find_published(content["published"]["name"]), content["results"]
        measured = {env: (list(_episodes(file, row, env, record)), _tasks(row, env)) for env, record in records.items()}
        figures = _counts(comparison_record(row, measured))
        if figures != _counts(content["published"]):
            raise BadValue(f"'{file}': its figures are not those of its episodes; evaluate again, and submit that file")
        first = next(iter(records.values()))
        return Reproduction(
            row=row.name,
            figures=figures,
            whole=_is_whole(row, measured),
            weights={env: _weights(file, record) for env, record in records.items()},
            seed=first["seed"],
            machine=content["machine"],
            versions={**first["protocol"]["versions"], **content["versions"]},
            result_sha256=reading.file_sha256(file),
            date=f"{datetime.now(UTC):%Y-%m-%d}",
        )


def _tasks(row: PublishedRow, env: str) -> Sequence[Task]:
    return find_benchmark(env, **row.protocol.env_kwargs).tasks


def _counts(published: Options) -> dict[str, Counts]:
    return {
        figure["label"]: Counts(successes=figure["successes"], episodes=figure["episodes"])
        for figure in published["figures"]
        if "episodes" in figure
    }


def _is_whole(row: PublishedRow, measured: Measured) -> bool:
    protocol = row.protocol
    return all(
        len(episodes) == protocol.rounds * (protocol.start_states or sum(task.num_trials for task in tasks))
        for episodes, tasks in measured.values()
    ) and measured.keys() == set(row.envs)


def _weights(file: Path, record: Options) -> Weights:
    name, sha256 = record["policy"], record["weights_sha256"]
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise BadValue(f"'{file}': weights_sha256 must be 64 hexadecimal digits, got {shown(sha256)}")
    commit = record["read_as"].get("commit")
    return Weights(policy=name if commit else Path(name.removesuffix("/best")).name, commit=commit, sha256=sha256)


def _episodes(file: Path, row: PublishedRow, env: str, record: Options) -> Iterator[EpisodeRecord]:
    """Yield an environment's episodes; raises `BadValue` where they are not of the row's protocol."""
    if env not in row.envs:
        raise BadValue(f"'{file}': {row.name} is of {', '.join(row.envs)}, got {shown(env)}")
    played, options, tasks = record["protocol"]["evaluation"], record["protocol"]["options"], _tasks(row, env)
    for name, wanted in (("sample", row.protocol.sample), ("temperature", row.protocol.temperature)):
        if played[name] != wanted:
            raise BadValue(f"'{file}': {row.name} was published with {name} {wanted}, got {shown(played[name])}")
    if options != row.protocol.env_kwargs:
        raise BadValue(f"'{file}': {row.name} is played with {dict(row.protocol.env_kwargs)}, got {shown(options)}")
    starts: dict[tuple[int, int], str] = {}
    seen: set[tuple[int, int, int]] = set()
    for values in record["episodes"]:
        episode = EpisodeRecord(**values)
        start = episode.task_id, episode.trial_id
        if (
            not (0 <= start[0] < len(tasks) and 0 <= start[1] < tasks[start[0]].num_trials)
            or not 0 <= episode.round < row.protocol.rounds
            or (*start, episode.round) in seen
            or not episode.start_state
            or starts.setdefault(start, episode.start_state) != episode.start_state
        ):
            raise BadValue(
                f"'{file}': task {start[0]}, trial {start[1]}, round {episode.round} of {env} is no episode of the "
                "protocol, is there twice, or began in another state than its other rounds"
            )
        seen.add((*start, episode.round))
        yield episode
