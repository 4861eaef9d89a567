"""A planned evaluation played to its record: shared by the commands that measure success."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_gym.errors import BadValue, VLAZooError, os_reason
from zoo.agents.agent import Agent
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluation_record, evaluation_table, protocol_line
from zoo.files import write_text
from zoo.runs.evaluations import weights_sha256
from zoo.runs.progress import Progress

if TYPE_CHECKING:
    from vla_gym.vector.vector_env import VLAVectorEnv


def weights_of(plan: Agent) -> str | None:
    """SHA-256 of the plan's weights, as their server tells it where they are served; None where it is not known."""
    return weights_sha256(Path(plan.name)) if plan.server is None else plan.server.declaration.weights_sha256


def partial_file(output: Path) -> Path:
    """The file of the episodes that were finished when an evaluation ended early."""
    return output.with_name(f"{output.stem}_partial{output.suffix}")


def measure(plan: Agent, *, weights: str | None, partial: Path, progress: bool | None) -> tuple[str, dict[str, Any]]:
    """Play the plan's episodes; returns the table of success and the record as JSON values.

    `weights` is their `weights_of`.
    An error of the kind that users meet (a policy server or a simulator that is gone) leaves the finished episodes in
    the file `partial`, and says so.
    """
    from zoo.agents.agent import open_agent, play

    policy, envs = open_agent(plan)
    bar = Progress(len(plan.episodes), on=progress, unit="episode")
    finished: list[EpisodeRecord] = []

    def on_episode(episode: EpisodeRecord) -> None:
        finished.append(episode)
        bar.note(f"success {sum(e.success_once for e in finished) / len(finished):.1%}")
        bar.to(len(finished))

    actions = policy.action_selection_text(deterministic=not plan.protocol.sample)
    try:
        episodes = play(plan, policy, envs, on_episode=on_episode)
    except VLAZooError as error:
        if not finished:
            raise
        record = {"planned_episodes": len(plan.episodes), **_record(plan, envs, finished, actions, weights)}
        write_or_print(partial, json.dumps(record, indent=2))
        kept = "1 finished episode is" if len(finished) == 1 else f"{len(finished)} finished episodes are"
        raise type(error)(f"{error}; {kept} in {partial}") from error
    finally:
        bar.close()
        envs.close()
    record = _record(plan, envs, episodes, actions, weights)
    return evaluation_table(episodes, envs.benchmark.tasks, record["summary"]), record


def _record(
    plan: Agent, envs: VLAVectorEnv, episodes: list[EpisodeRecord], actions: str, weights: str | None
) -> dict[str, Any]:
    protocol, own_words = envs.protocol(), len(envs.config.own_instructions)
    line = protocol_line(plan.env, episodes, envs.benchmark, chunk=envs.chunk, actions=actions, own_words=own_words)
    return evaluation_record(
        episodes,
        envs.benchmark.tasks,
        env_id=plan.env,
        protocol={**protocol, "evaluation": {**plan.protocol.to_json(), "actions": actions, "seed": plan.seed}},
        policy=plan.name,
        weights_sha256=weights,
        seed=plan.seed,
        deterministic=not plan.protocol.sample,
        rounds=plan.protocol.rounds,
        summary=line,
        **({} if plan.server is None else {"server": plan.server.declaration.to_json()}),
    )


def write_or_print(path: Path, text: str) -> None:
    """Write the file, its folders too; raises `BadValue` where that fails, but prints `text`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text + "\n")
    except OSError as error:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        raise BadValue(f"cannot write '{path}': {os_reason(error)}; what belongs there was printed instead") from error
