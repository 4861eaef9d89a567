"""`vla-zoo improve --env Toy-Reach --policy logs/sft/Toy-Reach_1`: rounds of acting and learning from that.

    <log folder>/improve/<env>_<k>/
        improve.json                  the flags, and the rounds that are done; written after each
        round_0.json                  evaluation of the policy it began with
        round_<n>/rollouts/           what the policy did, as `vla-zoo collect` writes it
        round_<n>/sft/<env>_1/        the run of `vla-zoo sft` that learned from it; its best/ acts in the next round

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.reading import user_path
from vla_gym.system.paths import check_folder
from zoo import collect, evaluate, sft
from zoo.cli.agent import OF_LEARNING, unplayed_split
from zoo.cli.arguments import (
    DEFAULT_NUM_ENVS,
    VERSION_TEXT,
    OneLineParser,
    as_pairs,
    count,
    count_or_zero,
    flag_of,
    key_values,
    positive,
    processes,
    seed,
)
from zoo.cli.main import check_alone, guarded
from zoo.cli.shared_flags import add_device_arguments, add_gym_packages_argument, add_params_argument
from zoo.config.gym_packages import import_named_packages, packages_flag
from zoo.config.run_config import RunConfig, sft_config
from zoo.demonstrations.lerobot_format import parquet
from zoo.demonstrations.lerobot_reader import check_dataset, solved_episodes
from zoo.files import content_of, quoted, read_json, write_text
from zoo.imitation.weights import NothingToWeigh, check_weighable
from zoo.runs.folder import (
    COMMAND_FILE,
    EVALUATION_FILE,
    RunFolder,
    commit_note,
    create_run_folder,
    holds_policy,
    locked,
)

RECORD_FILE = "improve.json"
START_FILE = "round_0.json"
"""Evaluation of the policy that the first round begins with."""
LEARNED = "learned"
"""False in the record of a round that had nothing to learn."""
ROUNDS, EPISODES, UPDATES = 3, 100, 300
"""Without flags: rounds, and in each the episodes collected and the updates learned."""
Done = dict[str, Any]
"""Record of a finished round."""
_ANYTIME = ("rounds", "device", "num_threads")
"""Flags that may change when it goes on."""
_OF_ALL = ("env", "seed", "num_envs", "device", "num_threads", "gym_packages")


def parser() -> OneLineParser:
    """Return the flags of `vla-zoo improve`."""
    p = OneLineParser("vla-zoo improve", "Rounds of collecting with a policy and learning from what it did.")
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
    """Run the command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    check_alone("vla-zoo improve")
    rounds = _stored(args) if args.resume else _fresh(args)
    config, first = _checked(rounds), not rounds.done
    if args.resume is None:
        check_folder(Path(args.log_folder), what="rounds", flag="-f DIR")
        rounds.folder = create_run_folder(Path(args.log_folder), "improve", args.env).path
    try:
        with locked(RunFolder(rounds.folder)):
            with (rounds.folder / COMMAND_FILE).open("a", encoding="utf-8") as file:
                command = shlex.join(["vla-zoo", "improve", *argv])
                file.write(f"{command}  # {VERSION_TEXT}{commit_note()}\n")
            return _improve(rounds, config)
    except (VLAZooError, OSError):
        if first and not any(path.is_file() for path in rounds.round_folder(1).rglob("*")):
            shutil.rmtree(rounds.folder)
        raise


def _fresh(args: argparse.Namespace) -> Rounds:
    defaults = {"seed": secrets.randbits(32), "rounds": ROUNDS, "episodes": EPISODES, "n_updates": UPDATES}
    for name, value in {**defaults, "weight": "success"}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return Rounds(args, Path(), split=args.eval_split)


def _stored(args: argparse.Namespace) -> Rounds:
    folder = Path(args.resume)
    if not (folder / RECORD_FILE).is_file():
        raise BadValue(f"'{folder}' is no folder of improve, such as logs/improve/Toy-Reach_1: no {RECORD_FILE}")
    fresh = vars(parser().parse([]))
    for name in fresh.keys() - {*_ANYTIME, "resume"}:
        if getattr(args, name) != fresh[name]:
            allowed = ", ".join(map(flag_of, _ANYTIME))
            raise BadValue(f"{flag_of(name)} cannot change when it goes on with -i; allowed: {allowed}")
    record = read_json(folder / RECORD_FILE)
    with content_of(folder / RECORD_FILE):
        rounds = _fresh(parser().parse([str(word) for word in record["argv"]]))
        rounds.folder, rounds.done = folder, list(record["rounds"])
        for number, one in enumerate(rounds.done):
            _line(number, one)
    for name in _ANYTIME:
        if getattr(args, name) is not None:
            setattr(rounds.args, name, getattr(args, name))
    done = len(rounds.done) - 1
    if done >= rounds.args.rounds or (done > 0 and not rounds.args.episodes):
        again = f"for more give --rounds, e.g. --rounds {2 * done}"
        raise BadValue(f"'{folder}' has done its {done} rounds; {again if rounds.args.episodes else 'begin anew'}")
    return rounds


def _checked(rounds: Rounds) -> RunConfig:
    """Return the first run of fine-tuning that is left; raise for flags that a command of a round would refuse."""
    args = rounds.args
    import_named_packages(args)
    for name, example in (("env", "Toy-Reach"), ("policy", "logs/sft/Toy-Reach_1")):
        if getattr(args, name) is None:
            raise BadValue(f"--{name} is missing. Example: --{name} {example}")
    if not args.episodes and (not args.dataset or args.rounds > 1):
        raise BadValue("--episodes 0 collects nothing: give a --dataset to learn from, --rounds 1 and more of -n")
    parquet()
    number = max(1, len(rounds.done))
    config = sft.resolve_new_finetuning(sft.parser().parse(rounds.learning(number)))
    for dataset in args.dataset:
        check_weighable(user_path(dataset), sft_config(config).weight)
    if args.episodes:
        collect.policy_source(collect.parser().parse(rounds.collecting(number)))
    rounds.split = args.eval_split or unplayed_split(args.env, {"split": "train", **config.env_options}, "validation")
    return config


def _improve(rounds: Rounds, config: RunConfig) -> int:
    done, again = rounds.done, f"vla-zoo improve -i {quoted(rounds.folder)}"
    rounds.write()
    while len(done) <= rounds.args.rounds:
        number, began = len(done), _cpu_seconds()
        try:
            record = _round(rounds, number, config)
        except KeyboardInterrupt:
            print(f"go on with: {again}")
            raise
        if record is None:
            print(f"stopped in round {number}; go on with: {again}")
            return 0
        done.append({**record, "cpu_seconds": _cpu_seconds() - began})
        rounds.write()
        print(_line(number, done[-1]), flush=True)
    print("\n".join(["", *(_line(number, one) for number, one in enumerate(done))]))
    print(f"policy      {rounds.policy_after(len(done))}\nnext:")
    if run := rounds.newest_run(len(done)):
        print(f"  vla-zoo evaluate{packages_flag(rounds.args.gym_packages)} -i {quoted(run.path)}")
    if rounds.args.episodes:
        print(f"  {again} --rounds {2 * rounds.args.rounds}   (more rounds)")
    return 0


def _round(rounds: Rounds, number: int, config: RunConfig) -> Done | None:
    """Collect and learn; in round 0 evaluate the first policy alone. Return None where learning was stopped.

    What an earlier process has done of a round is not repeated. Where no frame is worth more than another, the policy
    stays as it is for the next round.
    """
    folder = rounds.round_folder(number)
    done: Done = {}
    evaluation = rounds.folder / START_FILE
    if number:
        if rounds.args.episodes and not (folder / "sft").is_dir():
            collect.run(rounds.collecting(number))
        run = rounds.run_of(number)
        try:
            if run.saved_steps():
                args = rounds.args
                sft.run(_as_flags({"resume": run.path, "device": args.device, "num_threads": args.num_threads}))
            elif not sft.has_ended(run):
                shutil.rmtree(folder / "sft", ignore_errors=True)
                sft.run(rounds.learning(number))
            if not sft.has_ended(rounds.run_of(number)):
                return None
        except NothingToWeigh:
            if not rounds.args.episodes:
                raise
            done = {LEARNED: False}
        if rounds.args.episodes:
            rollouts = folder / "rollouts"
            done |= {"collected": check_dataset(rollouts).total_episodes, "solved": solved_episodes(rollouts)}
        evaluation = rounds.run_of(number).path / EVALUATION_FILE
    elif config.eval_episodes:
        evaluate.run(rounds.evaluating(config.eval_episodes))
    if config.eval_episodes and LEARNED not in done:
        done |= {"success": read_json(evaluation)["success"], "split": rounds.split}
    return done


def _line(number: int, done: Done) -> str:
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


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended, such as simulators."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


# The rounds as flags of the commands that make them up ----------------------------------------------


@dataclass
class Rounds:
    """Rounds: their flags, and the records of those that are done."""

    args: argparse.Namespace
    """Parsed flags, defaults filled in."""
    folder: Path
    """Where it all goes."""
    done: list[Done] = field(default_factory=list)
    """The rounds so far, from 0 on; grows."""
    split: str | None = None
    """Split of the evaluations."""

    def write(self) -> None:
        given = {name: value for name, value in vars(self.args).items() if name not in ("log_folder", "resume")}
        record = {"argv": _as_flags(given), "rounds": self.done}
        write_text(self.folder / RECORD_FILE, json.dumps(record, indent=2) + "\n")

    def collecting(self, number: int) -> list[str]:
        """Return the flags of `vla-zoo collect`: failures are kept; start states go on where the last round ended."""
        return self._flags(
            "temperature",
            "episodes",
            policy=self.policy_after(number - 1),
            stochastic=True,
            keep_failures=True,
            skip=(number - 1) * self.args.episodes,
            output=self.round_folder(number) / "rollouts",
            params=self._params(opens=self.newest_run(number - 1) is None, learns=False),
        )

    def learning(self, number: int) -> list[str]:
        """Return the flags of `vla-zoo sft` in a round."""
        rollouts = [self.round_folder(one) / "rollouts" for one in range(1, number + 1) if self.args.episodes]
        return self._flags(
            *sft.LEARNING_FIELDS,
            "n_updates",
            "eval_episodes",
            policy=self.policy_after(number - 1),
            dataset=[*self.args.dataset, *rollouts],
            eval_split=self.split,
            log_folder=self.round_folder(number),
            params=self._params(opens=self.newest_run(number - 1) is None, learns=True),
        )

    def evaluating(self, episodes: int) -> list[str]:
        """Return the flags of `vla-zoo evaluate` for the policy that the first round begins with."""
        return self._flags(
            policy=self.args.policy,
            split=self.split,
            eval_episodes=episodes,
            output=self.folder / START_FILE,
            params=self._params(opens=True, learns=False),
        )

    def _flags(self, *names: str, **more: object) -> list[str]:
        return _as_flags({**{name: getattr(self.args, name) for name in (*_OF_ALL, *names)}, **more})

    def _params(self, *, opens: bool, learns: bool) -> list[str]:
        """Return `-params` without the parts of `policy_kwargs` that are not for this: those of learning, those of
        opening a policy, which one that a round saved knows itself."""
        values = key_values(self.args.params)
        if isinstance(policy := values.pop("policy_kwargs", {}), Mapping):
            policy = {name: value for name, value in policy.items() if (learns if name in OF_LEARNING else opens)}
        return as_pairs({**values, "policy_kwargs": policy} if policy else values)

    def round_folder(self, number: int) -> Path:
        return self.folder / f"round_{number}"

    def run_of(self, number: int) -> RunFolder:
        """Return the run of `vla-zoo sft` of a round, which may not be there yet."""
        folder = self.round_folder(number) / "sft"
        return RunFolder(max(folder.glob("*"), default=folder))

    def newest_run(self, number: int) -> RunFolder | None:
        """Return the run of the last round, up to `number`, that learned anything; None where none did."""
        learned = [one for one in range(1, number + 1) if self.done[one:] and self.done[one].get(LEARNED, True)]
        return self.run_of(learned[-1]) if learned else None

    def policy_after(self, number: int) -> str:
        """Return the policy that a round left; before any has learned the one that was given."""
        run = self.newest_run(number)
        if run is None:
            return str(self.args.policy)
        if not holds_policy(run.best):
            raise BadValue(f"'{run.best}' holds no policy (any more), from which the next round would go on")
        return str(run.best)


def _as_flags(flags: Mapping[str, object]) -> list[str]:
    """Return flags of a command by the names that argparse stores them under."""
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(flag_of(name))
        elif isinstance(value, list):
            words += [flag_of(name), *map(str, value)] if value else []
        elif value is not None and value is not False:
            words.append(f"{flag_of(name)}={value}")
    return words


if __name__ == "__main__":
    raise SystemExit(guarded(run))
