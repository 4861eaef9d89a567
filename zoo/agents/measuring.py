"""An agent's success: its episodes played to a table and a record, for the commands that measure it."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, VLAZooError, os_reason
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies.resolver import PolicyRef
from zoo.agents.agent import Agent, open_agent, play
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluation_record, evaluation_table
from zoo.evaluation.video import EvaluationVideo
from zoo.files import write_text
from zoo.runs.evaluations import weights_sha256
from zoo.runs.progress import LOGGER, Progress


def weights_of(agent: Agent) -> str | None:
    """Return the SHA-256 of the agent's weights, as their server tells it where they are served; None = not known."""
    if not isinstance(agent.policy, PolicyRef):
        return agent.policy.weights_sha256
    return None if agent.policy.folder is None else weights_sha256(agent.policy.folder)


def partial_file(output: Path) -> Path:
    """Return the file of the episodes that were finished when an evaluation ended early."""
    return output.with_name(f"{output.stem}_partial{output.suffix}")


def measure(
    agent: Agent, *, weights: str | None, partial: Path, progress: bool | None, video: Path | None = None
) -> tuple[str, dict[str, Any]]:
    """Play the agent's episodes, nine of them into an mp4 `video`; return the table of success and the record as JSON.

    `weights` is `weights_of` the agent. An error of the kind that users meet (a policy server or a simulator that is
    gone) leaves the finished episodes in the file `partial`, and says so.
    """
    agent = agent.fetched()
    LOGGER.info(f"starting {agent.num_envs} simulators; the first step of each comes after some seconds")
    policy, envs = open_agent(agent)
    sentences = [envs.benchmark.tasks[start.task_id].instruction for start in agent.episodes]
    film, fps = EvaluationVideo(sentences, max_episodes=9 if video else 0), float(envs.metadata["render_fps"])
    bar = Progress(len(agent.episodes), on=progress, unit="episode")
    finished: list[EpisodeRecord] = []

    def on_episode(episode: EpisodeRecord) -> None:
        finished.append(episode)
        bar.note(f"success {sum(e.success_once for e in finished) / len(finished):.1%}")
        bar.to(len(finished))

    actions = policy.action_selection_text(deterministic=not agent.protocol.sample)
    try:
        with film.kept(video, fps=fps):
            episodes = play(agent, policy, envs, on_episode=on_episode, on_frame=film.add_frame if video else None)
    except VLAZooError as error:
        if not finished:
            raise
        record = {"planned_episodes": len(agent.episodes), **_record(agent, envs, finished, actions, weights)}
        write_or_print(partial, json.dumps(record, indent=2))
        kept = "1 finished episode is" if len(finished) == 1 else f"{len(finished)} finished episodes are"
        raise type(error)(f"{error}; {kept} in {partial}") from error
    finally:
        bar.close()
        envs.close()
    if video:
        film.write(video, fps=fps)
    record = _record(agent, envs, episodes, actions, weights)
    return evaluation_table(episodes, envs.benchmark.tasks, record["summary"]), record


def _record(
    agent: Agent, envs: VLAVectorEnv, episodes: list[EpisodeRecord], actions: str, weights: str | None
) -> dict[str, Any]:
    facts = {
        "policy": agent.policy.name,
        "weights_sha256": weights,
        "read_as": agent.read_as,
        "seed": agent.seed,
    }
    return evaluation_record(
        episodes,
        envs.benchmark,
        agent.protocol,
        env_id=agent.env,
        env_protocol=envs.protocol(),
        actions=actions,
        seed=agent.seed,
        facts=facts if agent.served is None else {**facts, "server": agent.served.to_json()},
    )


def keep_former(path: Path) -> None:
    """Rename a file of that name, results.json to results-1.json, or to the first free number."""
    if path.is_file():
        names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
        kept = path.rename(next(name for name in names if not name.exists()))
        sys.stdout.write(f"the former {path.name} is kept as {kept.name}\n")


def write_or_print(path: Path, text: str) -> None:
    """Write the file, its folders too; raises `BadValue` where that fails, but prints `text`.

    A file of that name is renamed before, as by `keep_former`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        keep_former(path)
        write_text(path, text + "\n")
    except OSError as error:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        raise BadValue(f"cannot write '{path}': {os_reason(error)}; what belongs there was printed instead") from error
