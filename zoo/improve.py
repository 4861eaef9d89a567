"""`python -m zoo.improve --env Toy-Reach --policy logs/sft/Toy-Reach_1`: rounds of acting and learning from that.

    <log folder>/improve/<env>_<k>/
        improve.json                  the flags, and the rounds that are done; written after each
        round_0.json                  evaluation of the policy it began with
        round_<n>/rollouts/           what the policy did, as `zoo.collect` writes it
        round_<n>/sft/<env>_1/        the run of `zoo.sft` that learned from it; its best/ acts in the next round

Each round goes on from the policy of the round before and learns from the rollouts of all rounds and from `--dataset`.
"""

from __future__ import annotations

import argparse
import json
import resource
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.reading import user_path
from vla_gym.system.paths import check_folder
from vla_gym.vector.protocol import with_instructions
from zoo import collect, evaluate, sft
from zoo.cli.agent import unplayed_split
from zoo.cli.arguments import (
    DEFAULT_NUM_ENVS,
    VERSION_TEXT,
    OneLineParser,
    count,
    count_or_zero,
    flag_of,
    positive,
    processes,
    seed,
)
from zoo.cli.demonstration_source import policy_source
from zoo.cli.main import check_alone, guarded
from zoo.cli.rounds_plan import (
    EPISODES,
    LEARNED,
    ROUNDS,
    START_FILE,
    UPDATES,
    RoundsPlan,
    as_flags,
    check_beside_rollouts,
)
from zoo.cli.run_flags import has_ended, resolve_new_finetuning
from zoo.cli.shared_flags import add_device_arguments, add_gym_packages_argument, add_params_argument
from zoo.config.batch_plan import benchmark_of
from zoo.config.gym_packages import import_named_packages, packages_flag
from zoo.config.run_config import sft_config
from zoo.demonstrations.lerobot_format import parquet
from zoo.demonstrations.lerobot_reader import check_dataset, solved_episodes
from zoo.files import content_of, quoted, read_json, write_text
from zoo.imitation.weights import NothingToLearn, check_weighable
from zoo.runs.folder import (
    COMMAND_FILE,
    EVALUATION_FILE,
    RunFolder,
    commit_note,
    create_run_folder,
    locked,
)

RECORD_FILE = "improve.json"
_ANYTIME = ("rounds", "device", "num_threads")
"""Flags that may change when it goes on."""


def parser() -> OneLineParser:
    """The flags of `zoo.improve`."""
    p = OneLineParser("zoo.improve", "Rounds of collecting with a policy and learning from what it did.")
    p.add_argument("--env", metavar="ID", help="environment id, e.g. Toy-Reach")
    p.add_argument("--policy", metavar="NAME", help="policy to improve: a run folder, a checkpoint folder or a Hub id")
    p.add_argument(
        "--dataset",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="LeRobotDataset v3.0 with rewards or successes, learned in every round beside the rollouts",
    )
    p.add_argument("--rounds", type=count, metavar="N", help=f"rounds in all (default: {ROUNDS})")
    p.add_argument(
        "--episodes",
        type=count_or_zero,
        metavar="N",
        help=f"episodes collected in a round; 0: none, learn from --dataset alone (default: {EPISODES})",
    )
    p.add_argument(
        "--temperature",
        type=positive,
        metavar="T",
        help="of the action tokens sampled while collecting (default: the policy's own)",
    )
    sft.add_learning_arguments(p, updates=f"updates of a round (default: {UPDATES})", weight="success")
    p.add_argument(
        "--num-envs", type=processes, metavar="N", help=f"simulators side by side (default: {DEFAULT_NUM_ENVS})"
    )
    p.add_argument("--seed", type=seed, metavar="S", help="seed of everything (default: drawn and stored)")
    p.add_argument(
        "--eval-episodes",
        type=count_or_zero,
        metavar="N",
        help="start states evaluated after each round; 0: none (default: the recipe's)",
    )
    p.add_argument(
        "--eval-split",
        metavar="NAME",
        help="their split (default: validation, where that has start states of its own, else as trained)",
    )
    p.add_argument("-f", "--log-folder", default="logs", metavar="DIR", help="where its folder goes (default: logs)")
    p.add_argument("-i", "--resume", metavar="FOLDER", help="a folder of zoo.improve: go on with its next round")
    add_params_argument(p, "settings of the environment, and policy_kwargs, over the recipe's")
    add_device_arguments(p, default=None)
    add_gym_packages_argument(p)
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    check_alone("zoo.improve")
    command = shlex.join(["python", "-m", "zoo.improve", *argv])
    return _go_on(args, command) if args.resume else _begin(args, command)


def _begin(args: argparse.Namespace, command: str) -> int:
    args.seed = secrets.randbits(32) if args.seed is None else args.seed
    rounds: list[dict[str, Any]] = []
    plan = _checked(args, Path(), rounds)
    check_folder(Path(args.log_folder), what="rounds", flag="-f DIR")
    given = {name: value for name, value in vars(args).items() if name not in ("log_folder", "resume")}
    record = {"argv": as_flags(given), "rounds": rounds}
    plan = replace(plan, folder=create_run_folder(Path(args.log_folder), "improve", args.env).path)
    try:
        return _improve(plan, record, command)
    except (VLAZooError, OSError):
        if not any(path.is_file() for path in plan.round_folder(1).rglob("*")):
            shutil.rmtree(plan.folder)
        raise


def _go_on(args: argparse.Namespace, command: str) -> int:
    folder = Path(args.resume)
    if not (folder / RECORD_FILE).is_file():
        raise BadValue(f"'{folder}' is no folder of zoo.improve, such as logs/improve/Toy-Reach_1: no {RECORD_FILE}")
    fresh = vars(parser().parse([]))
    for name in fresh.keys() - {*_ANYTIME, "resume"}:
        if getattr(args, name) != fresh[name]:
            allowed = ", ".join(map(flag_of, _ANYTIME))
            raise BadValue(f"{flag_of(name)} cannot change when it goes on with -i; allowed: {allowed}")
    record = read_json(folder / RECORD_FILE)
    with content_of(folder / RECORD_FILE):
        if not isinstance(record["rounds"], list):
            raise TypeError("rounds must be a list")
        stored = parser().parse([str(word) for word in record["argv"]])
        lines = [_line(number, one) for number, one in enumerate(record["rounds"])]
    for name in _ANYTIME:
        if getattr(args, name) is not None:
            setattr(stored, name, getattr(args, name))
    done = max(0, len(lines) - 1)
    plan = _checked(stored, folder, record["rounds"])
    if done and not plan.episodes:
        raise BadValue(
            f"'{folder}' has done its round; without collecting there is no second; begin anew with more of -n"
        )
    if done >= plan.rounds:
        raise BadValue(f"'{folder}' has done its {done} rounds; for more give --rounds, e.g. --rounds {2 * done}")
    return _improve(plan, record, command)


def _checked(args: argparse.Namespace, folder: Path, done: Sequence[Mapping[str, Any]]) -> RoundsPlan:
    """Return the plan of flags that every round can use after those `done`; raises for others, and starts nothing."""
    import_named_packages(args)
    for name, example in (("env", "Toy-Reach"), ("policy", "logs/sft/Toy-Reach_1")):
        if getattr(args, name) is None:
            raise BadValue(f"--{name} is missing. Example: --{name} {example}")
    plan = RoundsPlan(args=args, folder=folder, split=args.eval_split, eval_episodes=0, done=done)
    if not plan.episodes and not args.dataset:
        raise BadValue("--episodes 0 collects nothing, and there is no --dataset to learn from; give one of them")
    if not plan.episodes and plan.rounds > 1:
        raise BadValue("--episodes 0 collects nothing that a second round could learn; give --rounds 1 and more of -n")
    parquet()
    number = max(1, len(done))
    policy = plan.policy_after(number - 1)
    config = resolve_new_finetuning(sft.parser().parse(plan.learning(number, policy)))
    for dataset in args.dataset:
        check_weighable(user_path(dataset), sft_config(config).weight)
        if plan.episodes:
            check_beside_rollouts(user_path(dataset), config)
    if args.paraphrases is not None:
        from zoo.imitation.paraphrases import check_taught, read_paraphrases  # brings torch

        tasks = with_instructions(benchmark_of(config), config.env_options.get("instructions", {}))
        check_taught(read_paraphrases(user_path(args.paraphrases)), list(map(user_path, args.dataset)), tasks)
    if plan.episodes:
        policy_source(collect.parser().parse(plan.collecting(number, policy)))
    options = {"split": "train", **config.env_options}
    split = args.eval_split or unplayed_split(args.env, options, "validation")
    return replace(plan, split=split, eval_episodes=config.eval_episodes)


def _improve(plan: RoundsPlan, record: dict[str, Any], command: str) -> int:
    """Do the rounds that are left; `record` grows with each."""
    rounds, again = record["rounds"], f"python -m zoo.improve -i {quoted(plan.folder)}"
    with locked(RunFolder(plan.folder)):
        with (plan.folder / COMMAND_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{command}  # {VERSION_TEXT}{commit_note()}\n")
        while len(rounds) <= plan.rounds:
            number, began = len(rounds), _cpu_seconds()
            _write(plan, record)
            try:
                done = _round(plan, number) if number else _start(plan)
            except KeyboardInterrupt:
                print(f"go on with: {again}")
                raise
            if done is None:
                print(f"stopped in round {number}; go on with: {again}")
                return 0
            rounds.append({**done, "cpu_seconds": _cpu_seconds() - began})
            _write(plan, record)
            print(_line(number, rounds[-1]), flush=True)
    print("\n".join(["", *(_line(number, one) for number, one in enumerate(rounds))]))
    print(f"policy      {plan.policy_after(plan.rounds)}\nnext:")
    if learned := plan.learned(plan.rounds):
        packages = packages_flag(plan.args.gym_packages)
        print(f"  python -m zoo.evaluate{packages} -i {quoted(plan.run_of(learned).path)}")
    if plan.episodes:
        print(f"  {again} --rounds {2 * plan.rounds}   (more rounds)")
    return 0


def _start(plan: RoundsPlan) -> dict[str, Any]:
    """Evaluate the policy that the first round begins with."""
    if not plan.eval_episodes:
        return {}
    evaluate.run(plan.evaluating(plan.policy_after(0)))
    return {"success": read_json(plan.folder / START_FILE)["success"], "split": plan.split}


def _round(plan: RoundsPlan, number: int) -> dict[str, Any] | None:
    """Collect and learn; None where learning was stopped. What an earlier process has done of it is not repeated.

    Where no frame is worth more than another, the policy stays as it is for the next round.
    """
    folder, policy = plan.round_folder(number), plan.policy_after(number - 1)
    if plan.episodes and not (folder / "sft").is_dir():
        collect.run(plan.collecting(number, policy))
    run = plan.run_of(number)
    if run.saved_steps():
        sft.run(as_flags({"resume": run.path, "device": plan.args.device, "num_threads": plan.args.num_threads}))
    elif not has_ended(run):
        shutil.rmtree(folder / "sft", ignore_errors=True)
        try:
            sft.run(plan.learning(number, policy))
        except NothingToLearn:
            if not plan.episodes:
                raise
            return _collected(folder) | {LEARNED: False}
    run = plan.run_of(number)
    if not has_ended(run):
        return None
    done = _collected(folder) if plan.episodes else {}
    if plan.eval_episodes:
        done |= {"success": read_json(run.path / EVALUATION_FILE)["success"], "split": plan.split}
    return done


def _collected(folder: Path) -> dict[str, Any]:
    """Count the episodes of a round."""
    rollouts = folder / "rollouts"
    return {"collected": check_dataset(rollouts).total_episodes, "solved": solved_episodes(rollouts)}


def _line(number: int, done: Mapping[str, Any]) -> str:
    """What came of a round."""
    parts = []
    if "success" in done:
        rate = done["success"]
        parts.append(
            f"success {rate['success']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}], {rate['successes']} of "
            f"{rate['episodes']} ({done['split']})"
        )
    if "solved" in done:
        parts.append(f"{done['solved']} of {done['collected']} collected episodes solved")
    if not done.get(LEARNED, True):
        parts.append("nothing learned, the policy stays")
    parts.append(f"{done['cpu_seconds']:.0f} s of CPU")
    return f"round {number}: {'; '.join(parts)}"


def _write(plan: RoundsPlan, record: Mapping[str, Any]) -> None:
    write_text(plan.folder / RECORD_FILE, json.dumps(record, indent=2) + "\n")


def _cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended, such as simulators."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    raise SystemExit(guarded(run))
