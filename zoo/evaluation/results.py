"""Results as text and as JSON values."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from vla_gym.specs import Benchmark, Task
from zoo.config.evaluation import EvaluationProtocol
from zoo.config.settings import Options, Settings
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.statistics import (
    Comparison,
    Rate,
    holm,
    mean_of_rates,
    overall_rate,
    rate_values,
    rates_by_suite,
    rates_by_task,
)

_LABEL_WIDTH = 60
_MOST_ROWS = 40


def evaluation_table(episodes: Sequence[EpisodeRecord], tasks: Sequence[Task], protocol_line: str) -> str:
    """Return the table of `vla-zoo evaluate`: success first, each rate with k/n and its Wilson 95 % interval."""
    by_task, suites = rates_by_task(episodes, tasks), rates_by_suite(episodes, tasks)
    shown = by_task[:_MOST_ROWS]
    labels = [_shorten(rate.label) for rate in shown]
    others = (*(rate.label for rate in suites), "task-weighted mean")
    width = max(len(label) for label in (*labels, *others))
    lines = [f"success    95 % interval      k/n    {'task':<{width}}"]
    lines += [_row(rate, label) for rate, label in zip(shown, labels, strict=True)]
    if len(by_task) > len(shown):
        lines.append(f"... and {len(by_task) - len(shown)} tasks more (all of them are in the JSON file)")
    rule = "-" * (35 + width)
    lines.append(rule)
    if len(suites) > 1:
        lines += [_row(rate, rate.label) for rate in suites]
    lines.append(_row(overall_rate(episodes), "all episodes"))
    lines.append(_mean_row(mean_of_rates(by_task), f"task-weighted mean of {len(by_task)} tasks"))
    if len(suites) > 1:
        lines.append(_mean_row(mean_of_rates(suites), f"suite-weighted mean of {len(suites)} suites"))
    lines.append(f"protocol: {protocol_line}")
    return "\n".join(lines)


def evaluation_record(
    episodes: Sequence[EpisodeRecord],
    benchmark: Benchmark,
    evaluation: EvaluationProtocol,
    *,
    env_id: str,
    env_protocol: Options,
    actions: str,
    seed: int,
    facts: Mapping[str, object],
) -> Settings:
    """Return an evaluation as JSON values; `facts` are entries about the policy.

    `env_protocol` is the environment's `protocol()`, `actions` the policy's `action_selection_text`; `summary` is
    their `protocol_line`.
    """
    by_task = rates_by_task(episodes, benchmark.tasks)
    by_suite = rates_by_suite(episodes, benchmark.tasks)
    own_words = len(env_protocol["own_instructions"])
    summary = protocol_line(
        env_id, episodes, benchmark, chunk=env_protocol["chunk"], actions=actions, own_words=own_words
    )
    return {
        "env": env_id,
        **facts,
        "deterministic": not evaluation.sample,
        "rounds": evaluation.rounds,
        "summary": summary,
        "success": rate_values(overall_rate(episodes)),
        "task_weighted_mean": mean_of_rates(by_task),
        "suite_weighted_mean": mean_of_rates(by_suite),
        "suites": [rate_values(rate) for rate in by_suite],
        "tasks": [rate_values(rate) for rate in by_task],
        "episodes": [dataclasses.asdict(episode) for episode in episodes],
        "protocol": {**env_protocol, "evaluation": {**evaluation.to_json(), "actions": actions, "seed": seed}},
    }


def comparison_table(comparison: Comparison) -> str:
    """Return both rates of `vla-zoo compare`, what changed, and how likely chance alone is to do that."""
    separated = "do not overlap" if comparison.separated else "overlap"
    test, solved = "McNemar", ""
    if comparison.rounds > 1:
        test, solved = "sign flips of start states", f" in more of {comparison.rounds} rounds"
    return "\n".join(
        [
            "success    95 % interval      k/n",
            *(_row(rate, rate.label) for rate in (comparison.before, comparison.after)),
            f"{comparison.gained} start states gained{solved}, {comparison.lost} lost: p = {comparison.p_value:.2g} "
            f"({test}, exact, two-sided); the intervals {separated}",
        ]
    )


def task_comparison_table(comparisons: Mapping[str, Comparison]) -> str:
    """Return a line for each task of `vla-zoo compare`; p is raised for being one of several (Holm)."""
    widest = max(len(name) for name in ("task", *comparisons))
    raised = holm([comparison.p_value for comparison in comparisons.values()])
    return "\n".join(
        [
            f"{'task':<{widest}}   before    after  gained   lost  p (Holm)",
            *(
                f"{name:<{widest}}  {_fraction(task.before):>7}  {_fraction(task.after):>7}  {task.gained:>6}"
                f"  {task.lost:>5}  {p:.2g}"
                for (name, task), p in zip(comparisons.items(), raised, strict=True)
            ),
        ]
    )


def _fraction(rate: Rate) -> str:
    return f"{rate.successes}/{rate.episodes}"


def evaluation_metrics(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the metrics of an evaluation during training."""
    return {
        "eval/success_once": overall_rate(episodes).mean,
        "eval/success_at_end": statistics.fmean(episode.success_at_end for episode in episodes),
        "eval/return": statistics.fmean(episode.total_reward for episode in episodes),
        "eval/episode_len": statistics.fmean(episode.length for episode in episodes),
        "eval/reward": statistics.fmean(episode.total_reward / max(episode.length, 1) for episode in episodes),
        "eval/num_trajectories": len(episodes),
    }


def evaluated_line(now: int, episodes: Sequence[EpisodeRecord], *, kept: bool) -> str:
    """Return the screen's line for an evaluation during training."""
    rate = overall_rate(episodes)
    low, high = rate.interval
    return (
        f"{now:>10} evaluated: success {rate.mean:.1%} [{low:.1%}, {high:.1%}], "
        f"{rate.successes} of {rate.episodes}{', kept as best/' if kept else ''}"
    )


def protocol_line(
    env_id: str,
    episodes: Sequence[EpisodeRecord],
    benchmark: Benchmark,
    *,
    chunk: int,
    actions: str,
    own_words: int,
) -> str:
    """Return a line that keeps a success rate from being misread.

    `actions` is `VLAPolicy.action_selection_text`. `own_words` tasks have other words than the benchmark's.
    """
    tasks = benchmark.tasks
    tried = [tasks[task_id] for task_id in sorted({episode.task_id for episode in episodes})]
    starts = len({(episode.task_id, episode.trial_id) for episode in episodes})
    times, note = "", ""
    if starts < len(episodes):
        times = f"{max(episode.round for episode in episodes) + 1} rounds of "
        note = ", intervals by start state (its rounds are not independent)"
    horizons = sorted({task.horizon for task in tried})
    trials = sum(task.num_trials for task in tasks)
    spread = f"{horizons[0]}" if len(horizons) == 1 else f"{horizons[0]}-{horizons[-1]}"
    images = "" if benchmark.render_quality == "full" else f", {benchmark.render_quality} images"
    physics = "" if benchmark.physics == "exact" else f", {benchmark.physics} physics"
    words = f", own words for {own_words} {'task' if own_words == 1 else 'tasks'}" if own_words else ""
    line = (
        f"{env_id}, {len(episodes)} episodes = {times}{starts} of {trials} {benchmark.start_kind} on {len(tried)} of "
        f"{len(tasks)} tasks, success at any step, horizon {spread} steps, {actions}, chunk {chunk}{images}{physics}"
        f"{words}{note}"
    )
    return with_split(line, benchmark.split)


def with_split(line: str, split: str | None) -> str:
    """Return the protocol line with the split of its start states; unchanged where `split` is None or is there."""
    return line if split is None or f"split {split}" in line else f"{line}, split {split}"


def _row(rate: Rate, label: str) -> str:
    low, high = rate.interval
    interval = f"[{low:.1%}, {high:.1%}]"
    return f"{rate.mean:>7.1%}    {interval:<15}  {f'{rate.successes}/{rate.episodes}':>7}    {label}"


def _mean_row(mean: float, label: str) -> str:
    return f"{mean:>7.1%}    {'':<15}  {'':>7}    {label}"


def _shorten(label: str) -> str:
    return label if len(label) <= _LABEL_WIDTH else label[: _LABEL_WIDTH - 3] + "..."
