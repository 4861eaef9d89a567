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
import os
import resource
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.reading import user_path
from vla_gym.system.writable_paths import check_folder
from zoo import collect, evaluate, sft
from zoo.cli.acting import OF_LEARNING
from zoo.cli.agent import unplayed_split
from zoo.cli.arguments import (
    DEFAULT_NUM_ENVS,
    OneLineParser,
    add_device_arguments,
    add_gym_packages_argument,
    add_params_argument,
    as_pairs,
    count,
    count_or_zero,
    flag_of,
    key_values,
    number,
    processes,
    seed,
)
from zoo.cli.demonstration_source import policy_source
from zoo.cli.main import guarded
from zoo.cli.run_flags import has_ended, resolve_new_finetuning
from zoo.config.gym_packages import import_named_packages, packages_flag
from zoo.demonstrations.lerobot_format import parquet
from zoo.demonstrations.lerobot_reader import check_dataset, solved_episodes
from zoo.files import content_of, quoted, read_json, write_text
from zoo.runs.folder import EVALUATION_FILE, RunFolder, create_run_folder, holds_policy, locked
from zoo.runs.lookup import policy_folder
from zoo.runs.shipped_agents import local_or_shipped

RECORD_FILE, START_FILE = "improve.json", "round_0.json"
ROUNDS, EPISODES, UPDATES = 3, 100, 300
_ANYTIME = ("rounds", "device", "num_threads")
"""Flags that may change when it goes on."""
_OF_SFT = ("batch_size", "micro_batch_size", "learning_rate", "augment", "weight", "beta", "gamma")
_OF_BOTH = ("env", "seed", "num_envs", "device", "num_threads")


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
        type=number(lambda value: 0.0 < value <= 100.0, "a number above 0, at most 100"),
        metavar="T",
        help="of the action tokens sampled while collecting (default: the policy's own)",
    )
    sft.add_learning_arguments(p, updates=f"updates of a round (default: {UPDATES})", weight="success")
    p.add_argument(
        "--num-envs", type=processes, metavar="N", help=f"simulators side by side (default: {DEFAULT_NUM_ENVS})"
    )
    p.add_argument("--seed", type=seed, metavar="S", help="seed of everything (default: drawn and stored)")
    p.add_argument("--eval-episodes", type=count_or_zero, metavar="N", help="start states evaluated after each round")
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was asked for, checked."""

    args: argparse.Namespace
    """Parsed flags; the seed is set."""
    folder: Path
    """Where it all goes."""
    split: str | None
    """Split of the evaluations; None = the one that is trained on."""
    eval_episodes: int
    """Start states of an evaluation."""

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return self.args.rounds or ROUNDS

    def round_folder(self, number: int) -> Path:
        """Folder of a round."""
        return self.folder / f"round_{number}"

    @property
    def episodes(self) -> int:
        """Episodes collected in a round."""
        return EPISODES if self.args.episodes is None else int(self.args.episodes)

    def collecting(self, number: int, policy: str) -> list[str]:
        """Flags of `zoo.collect` in a round: failures are kept, and start states go on where the last round ended."""
        flags = {
            **{name: getattr(self.args, name) for name in (*_OF_BOTH, "temperature", "gym_packages")},
            "policy": policy,
            "episodes": self.episodes,
            "skip": (number - 1) * self.episodes,
            "output": self.round_folder(number) / "rollouts",
            "params": self._params(opens=number == 1, learns=False),
        }
        return ["--stochastic", "--keep-failures", *_words(flags)]

    def learning(self, number: int, policy: str) -> list[str]:
        """Flags of `zoo.sft` in a round."""
        rollouts = [self.round_folder(one) / "rollouts" for one in range(1, number + 1) if self.episodes]
        flags = {
            **{name: getattr(self.args, name) for name in (*_OF_BOTH, *_OF_SFT, "eval_episodes", "gym_packages")},
            "policy": policy,
            "weight": self.args.weight or "success",
            "dataset": [*self.args.dataset, *rollouts],
            "n_updates": self.args.n_updates or UPDATES,
            "eval_split": self.split,
            "log_folder": self.round_folder(number),
            "params": self._params(opens=number == 1, learns=True),
        }
        return _words(flags)

    def evaluating(self, policy: str) -> list[str]:
        """Flags of `zoo.evaluate` for the policy that the first round begins with."""
        flags = {
            **{name: getattr(self.args, name) for name in (*_OF_BOTH, "gym_packages")},
            "policy": policy,
            "split": self.split,
            "eval_episodes": self.eval_episodes,
            "output": self.folder / START_FILE,
            "params": self._params(opens=True, learns=False),
        }
        return _words(flags)

    def _params(self, *, opens: bool, learns: bool) -> list[str]:
        """`-params` without the parts of `policy_kwargs` that are not for this: those of learning, those of opening a
        policy, which one that a round saved knows itself."""
        values = key_values(self.args.params)
        policy = values.get("policy_kwargs")
        if isinstance(policy, Mapping):
            kept = {name: value for name, value in policy.items() if (learns if name in OF_LEARNING else opens)}
            values = {**values, "policy_kwargs": kept}
            if not kept:
                del values["policy_kwargs"]
        return as_pairs(values)

    def run_of(self, number: int) -> RunFolder:
        """The run of `zoo.sft` of a round, which may not be there yet."""
        runs = sorted((self.round_folder(number) / "sft").glob("*"))
        return RunFolder(runs[-1] if runs else self.round_folder(number) / "sft")

    def policy_after(self, number: int) -> str:
        """The policy that a round left; after round 0 the one that was given, of a run its best."""
        if number:
            return str(self.run_of(number).best)
        given = local_or_shipped(self.args.policy)
        is_run = given.is_dir() and not holds_policy(given)
        return str(policy_folder(self.args.policy)) if is_run else str(self.args.policy)


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadValue("zoo.improve runs in one process; a launcher's several are for zoo.train and zoo.sft")
    return _go_on(args) if args.resume else _begin(args)


def _begin(args: argparse.Namespace) -> int:
    args.seed = secrets.randbits(32) if args.seed is None else args.seed
    plan = _checked(args, Path(), 0)
    check_folder(Path(args.log_folder), what="rounds", flag="-f DIR")
    given = {name: value for name, value in vars(args).items() if name not in ("log_folder", "resume")}
    record: dict[str, Any] = {"argv": _words(given), "rounds": []}
    plan = replace(plan, folder=create_run_folder(Path(args.log_folder), "improve", args.env).path)
    try:
        return _improve(plan, record)
    except (VLAZooError, OSError):
        if not record["rounds"] or not (plan.round_folder(1) / "rollouts").exists():
            shutil.rmtree(plan.folder)
        raise


def _go_on(args: argparse.Namespace) -> int:
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
        stored = parser().parse([str(word) for word in record["argv"]])
        lines = [_line(number, one) for number, one in enumerate(record["rounds"])]
    for name in _ANYTIME:
        if getattr(args, name) is not None:
            setattr(stored, name, getattr(args, name))
    done = max(0, len(lines) - 1)
    plan = _checked(stored, folder, done)
    if done >= plan.rounds:
        raise BadValue(f"'{folder}' has done its {done} rounds; for more give --rounds, e.g. --rounds {2 * done}")
    return _improve(plan, record)


def _checked(args: argparse.Namespace, folder: Path, done: int) -> Plan:
    """Return the plan of flags that every round can use, `done` of which are; raises for others, and starts nothing."""
    import_named_packages(args)
    for name, example in (("env", "Toy-Reach"), ("policy", "logs/sft/Toy-Reach_1")):
        if getattr(args, name) is None:
            raise BadValue(f"--{name} is missing. Example: --{name} {example}")
    plan = Plan(args=args, folder=folder, split=args.eval_split, eval_episodes=0)
    if not plan.episodes and not args.dataset:
        raise BadValue("--episodes 0 collects nothing, and there is no --dataset to learn from; give one of them")
    if not plan.episodes and plan.rounds > 1:
        raise BadValue("--episodes 0 collects nothing that a second round could learn; give --rounds 1 and more of -n")
    for dataset in args.dataset:
        check_dataset(user_path(dataset))
    parquet()
    policy = plan.policy_after(done)
    config = resolve_new_finetuning(sft.parser().parse(plan.learning(done + 1, policy)))
    if plan.episodes:
        policy_source(collect.parser().parse(plan.collecting(done + 1, policy)))
    split = args.eval_split
    if split is None:
        own = config.env_options.get("split", "train")
        other = unplayed_split(args.env, {**config.env_options, "split": own}, "validation")
        split = None if other == own else other
    return replace(plan, split=split, eval_episodes=config.eval_episodes)


def _improve(plan: Plan, record: dict[str, Any]) -> int:
    """Do the rounds that are left; `record` grows with each."""
    rounds, again = record["rounds"], f"python -m zoo.improve -i {quoted(plan.folder)}"
    with locked(RunFolder(plan.folder)):
        while len(rounds) <= plan.rounds:
            number, began = len(rounds), _cpu_seconds()
            _write(plan, record)
            done = _round(plan, number) if number else _start(plan)
            if done is None:
                print(f"stopped in round {number}; go on with: {again}")
                return 0
            rounds.append({**done, "cpu_seconds": _cpu_seconds() - began})
            _write(plan, record)
            print(_line(number, rounds[-1]), flush=True)
    last = plan.run_of(plan.rounds)
    packages = packages_flag(plan.args.gym_packages)
    print("\n".join(["", *(_line(number, one) for number, one in enumerate(rounds))]))
    print(f"policy      {last.best}\nnext:\n  python -m zoo.evaluate{packages} -i {quoted(last.path)}")
    print(f"  {again} --rounds {2 * plan.rounds}   (more rounds)")
    return 0


def _start(plan: Plan) -> dict[str, Any]:
    """Evaluate the policy that the first round begins with."""
    if not plan.eval_episodes:
        return {}
    evaluate.run(plan.evaluating(plan.policy_after(0)))
    return {"success": read_json(plan.folder / START_FILE)["success"], "split": plan.split or "train"}


def _round(plan: Plan, number: int) -> dict[str, Any] | None:
    """Collect and learn; None where learning was stopped. What an earlier process has done of it is not repeated."""
    folder, policy = plan.round_folder(number), plan.policy_after(number - 1)
    if plan.episodes and not (folder / "sft").is_dir():
        collect.run(plan.collecting(number, policy))
    run = plan.run_of(number)
    if run.saved_steps():
        sft.run(_words({"resume": run.path, **{name: getattr(plan.args, name) for name in ("device", "num_threads")}}))
    elif not has_ended(run):
        shutil.rmtree(folder / "sft", ignore_errors=True)
        sft.run(plan.learning(number, policy))
    run = plan.run_of(number)
    if not has_ended(run):
        return None
    done: dict[str, Any] = {}
    if plan.episodes:
        rollouts = folder / "rollouts"
        done = {"collected": check_dataset(rollouts).total_episodes, "solved": solved_episodes(rollouts)}
    if plan.eval_episodes:
        done |= {"success": read_json(run.path / EVALUATION_FILE)["success"], "split": plan.split or "train"}
    return done


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
    parts.append(f"{done['cpu_seconds']:.0f} s of CPU")
    return f"round {number}: {'; '.join(parts)}"


def _write(plan: Plan, record: Mapping[str, Any]) -> None:
    write_text(plan.folder / RECORD_FILE, json.dumps(record, indent=2) + "\n")


def _cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended, such as simulators."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _words(flags: Mapping[str, Any]) -> list[str]:
    """Return flags of a command by the names that argparse stores them under."""
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(flag_of(name))
        elif isinstance(value, list):
            words += [flag_of(name), *map(str, value)] if value else []
        elif value is not None:
            words.append(f"{flag_of(name)}={value}")
    return words


if __name__ == "__main__":
    raise SystemExit(guarded(run))
