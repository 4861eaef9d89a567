"""`python -m zoo.evaluate -i logs/ppo/LIBERO-Spatial_1`: success per task on fixed start states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vla_gym.destination import check_destination
from vla_gym.errors import BadValue
from zoo.arguments import OneLineParser, add_policy_arguments, count
from zoo.cli import guarded
from zoo.progress import Progress
from zoo.rollout_setup import plan_rollout


def parser() -> OneLineParser:
    """The flags of `zoo.evaluate`."""
    p = OneLineParser("zoo.evaluate", "Success per task of a run or a policy, with Wilson 95 % intervals.")
    add_policy_arguments(p)
    p.add_argument(
        "--eval-episodes", type=count, metavar="N", help="spread over the tasks (default: all start states)"
    )
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="JSON result (default: results.json in the run folder, or here)",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.guarded`."""
    args = parser().parse(argv)
    plan = plan_rollout(args, episodes=args.eval_episodes)
    output = Path(args.output) if args.output else (plan.output_folder or Path()) / "results.json"
    check_destination(output)

    from zoo.evaluation import Episode, evaluate
    from zoo.results import evaluation_record, evaluation_table, protocol_line
    from zoo.rollout_setup import open_rollout

    policy, envs = open_rollout(plan, device=args.device, num_threads=args.num_threads, seed=args.seed)
    progress = Progress(len(plan.cells), on=args.progress, unit="episode")
    finished: list[Episode] = []

    def on_episode(episode: Episode) -> None:
        finished.append(episode)
        progress.note(f"success {sum(e.success_once for e in finished) / len(finished):.1%}")
        progress.to(len(finished))

    try:
        episodes = evaluate(
            policy, envs, plan.cells, deterministic=not args.stochastic, on_episode=on_episode
        )
        protocol = envs.protocol()
    finally:
        progress.close()
        envs.close()
    tasks = envs.benchmark.tasks
    line = protocol_line(
        plan.env,
        episodes,
        tasks,
        chunk=envs.chunk,
        deterministic=not args.stochastic,
        start_kind=envs.benchmark.start_kind,
    )
    print(evaluation_table(episodes, tasks, line))
    record = evaluation_record(
        episodes,
        tasks,
        env_id=plan.env,
        protocol=protocol,
        policy=plan.policy,
        seed=args.seed,
        deterministic=not args.stochastic,
        summary=line,
    )
    write_or_print(output, json.dumps(record, indent=2))
    print(f"written to {output}")
    return 0


def write_or_print(path: Path, text: str) -> None:
    """Write the file, its folders too; raises `BadValue` where that fails, but prints `text`: it took work."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        print(text, flush=True)
        raise BadValue(
            f"cannot write '{path}': {error.strerror}; what belongs there was printed instead"
        ) from error


def main() -> int:
    """Entry point of `python -m zoo.evaluate`."""
    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
