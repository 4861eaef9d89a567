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
from zoo.cli.run_flags import has_ended, resolve_new_finetuning
from zoo.cli.shared_flags import add_device_arguments, add_gym_packages_argument, add_params_argument
from zoo.config.gym_packages import import_named_packages, packages_flag
from zoo.config.run_config import RunConfig, sft_config
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
_ANYTIME = ("rounds", "device", "num_threads")
"""Flags that may change when it goes on."""
_OF_ALL = ("env", "seed", "num_envs", "device", "num_threads", "gym_packages")


def parser() -> OneLineParser:
    """Return the flags of `zoo.improve`."""
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
    """Run the command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    check_alone("zoo.improve")
    command = shlex.join(["python", "-m", "zoo.improve", *argv])
    return _go_on(args, command) if args.resume else _begin(args, command)


def _begin(args: argparse.Namespace, command: str) -> int:
    args.seed = secrets.randbits(32) if args.seed is None else args.seed
    plan = RoundsPlan(args, Path(), split=args.eval_split)
    config = _checked(plan)
    check_folder(Path(args.log_folder), what="rounds", flag="-f DIR")
    plan.folder = create_run_folder(Path(args.log_folder), "improve", args.env).path
    try:
        return _improve(plan, config, command)
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
        stored = parser().parse([str(word) for word in record["argv"]])
        plan = RoundsPlan(stored, folder, list(record["rounds"]), stored.eval_split)
        for number, one in enumerate(plan.done):
            _line(number, one)
    for name in _ANYTIME:
        if getattr(args, name) is not None:
            setattr(stored, name, getattr(args, name))
    config, done = _checked(plan), len(plan.done) - 1
    if done >= plan.rounds or (done > 0 and not plan.episodes):
        more = f"for more give --rounds, e.g. --rounds {2 * done}" if plan.episodes else "begin anew with more of -n"
        raise BadValue(f"'{folder}' has done its {done} rounds; {more}")
    return _improve(plan, config, command)


def _checked(plan: RoundsPlan) -> RunConfig:
    """Return the first run of fine-tuning that is left; raise for flags that a command of a round would refuse."""
    args = plan.args
    import_named_packages(args)
    for name, example in (("env", "Toy-Reach"), ("policy", "logs/sft/Toy-Reach_1")):
        if getattr(args, name) is None:
            raise BadValue(f"--{name} is missing. Example: --{name} {example}")
    if not plan.episodes and not args.dataset:
        raise BadValue("--episodes 0 collects nothing, and there is no --dataset to learn from; give one of them")
    if not plan.episodes and plan.rounds > 1:
        raise BadValue("--episodes 0 collects nothing that a second round could learn; give --rounds 1 and more of -n")
    parquet()
    number = max(1, len(plan.done))
    policy = plan.policy_after(number - 1)
    config = resolve_new_finetuning(sft.parser().parse(plan.learning(number, policy)))
    for dataset in args.dataset:
        check_weighable(user_path(dataset), sft_config(config).weight)
    if plan.episodes:
        collect.policy_source(collect.parser().parse(plan.collecting(number, policy)))
    plan.split = args.eval_split or unplayed_split(args.env, {"split": "train", **config.env_options}, "validation")
    return config


def _improve(plan: RoundsPlan, config: RunConfig, command: str) -> int:
    """Do the rounds that are left."""
    rounds, again = plan.done, f"python -m zoo.improve -i {quoted(plan.folder)}"
    with locked(RunFolder(plan.folder)):
        with (plan.folder / COMMAND_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{command}  # {VERSION_TEXT}{commit_note()}\n")
        plan.write()
        while len(rounds) <= plan.rounds:
            number, began = len(rounds), _cpu_seconds()
            try:
                done = _round(plan, number, config) if number else _start(plan, config)
            except KeyboardInterrupt:
                print(f"go on with: {again}")
                raise
            if done is None:
                print(f"stopped in round {number}; go on with: {again}")
                return 0
            rounds.append({**done, "cpu_seconds": _cpu_seconds() - began})
            plan.write()
            print(_line(number, rounds[-1]), flush=True)
    print("\n".join(["", *(_line(number, one) for number, one in enumerate(rounds))]))
    print(f"policy      {plan.policy_after(plan.rounds)}\nnext:")
    if learned := plan.learned(plan.rounds):
        packages = packages_flag(plan.args.gym_packages)
        print(f"  python -m zoo.evaluate{packages} -i {quoted(plan.run_of(learned).path)}")
    if plan.episodes:
        print(f"  {again} --rounds {2 * plan.rounds}   (more rounds)")
    return 0


def _start(plan: RoundsPlan, config: RunConfig) -> dict[str, Any]:
    """Evaluate the policy that the first round begins with."""
    if not config.eval_episodes:
        return {}
    evaluate.run(plan.evaluating(plan.policy_after(0), config.eval_episodes))
    return {"success": read_json(plan.folder / START_FILE)["success"], "split": plan.split}


def _round(plan: RoundsPlan, number: int, config: RunConfig) -> dict[str, Any] | None:
    """Collect and learn; None where learning was stopped. What an earlier process has done of it is not repeated.

    Where no frame is worth more than another, the policy stays as it is for the next round.
    """
    folder, policy, learned = plan.round_folder(number), plan.policy_after(number - 1), True
    if plan.episodes and not (folder / "sft").is_dir():
        collect.run(plan.collecting(number, policy))
    run = plan.run_of(number)
    if run.saved_steps():
        sft.run(_as_flags({"resume": run.path, "device": plan.args.device, "num_threads": plan.args.num_threads}))
    elif not has_ended(run):
        shutil.rmtree(folder / "sft", ignore_errors=True)
        try:
            sft.run(plan.learning(number, policy))
        except NothingToLearn:
            if not plan.episodes:
                raise
            learned = False
    run = plan.run_of(number)
    if learned and not has_ended(run):
        return None
    done: dict[str, Any] = {}
    if plan.episodes:
        rollouts = folder / "rollouts"
        done = {"collected": check_dataset(rollouts).total_episodes, "solved": solved_episodes(rollouts)}
    if not learned:
        return {**done, LEARNED: False}
    if config.eval_episodes:
        done |= {"success": read_json(run.path / EVALUATION_FILE)["success"], "split": plan.split}
    return done


def _line(number: int, done: Mapping[str, Any]) -> str:
    """Return what came of a round."""
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
class RoundsPlan:
    """What was asked for, and what came of it so far."""

    args: argparse.Namespace
    """Parsed flags; the seed is set."""
    folder: Path
    """Where it all goes."""
    done: list[dict[str, Any]] = field(default_factory=list)
    """The rounds so far, from 0 on; grows."""
    split: str | None = None
    """Split of the evaluations; None = not known yet."""

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return self.args.rounds or ROUNDS

    @property
    def episodes(self) -> int:
        """Episodes collected in a round."""
        return EPISODES if self.args.episodes is None else int(self.args.episodes)

    def write(self) -> None:
        """Write `improve.json`."""
        given = {name: value for name, value in vars(self.args).items() if name not in ("log_folder", "resume")}
        record = {"argv": _as_flags(given), "rounds": self.done}
        write_text(self.folder / RECORD_FILE, json.dumps(record, indent=2) + "\n")

    def collecting(self, number: int, policy: str) -> list[str]:
        """Return the flags of `zoo.collect`: failures are kept; start states go on where the last round ended."""
        return self._flags(
            "temperature",
            policy=policy,
            stochastic=True,
            keep_failures=True,
            episodes=self.episodes,
            skip=(number - 1) * self.episodes,
            output=self.round_folder(number) / "rollouts",
            params=self._params(opens=not self.learned(number - 1), learns=False),
        )

    def learning(self, number: int, policy: str) -> list[str]:
        """Return the flags of `zoo.sft` in a round."""
        rollouts = [self.round_folder(one) / "rollouts" for one in range(1, number + 1) if self.episodes]
        return self._flags(
            *sft.LEARNING_FIELDS,
            "eval_episodes",
            policy=policy,
            weight=self.args.weight or "success",
            dataset=[*self.args.dataset, *rollouts],
            n_updates=self.args.n_updates or UPDATES,
            eval_split=self.split,
            log_folder=self.round_folder(number),
            params=self._params(opens=not self.learned(number - 1), learns=True),
        )

    def evaluating(self, policy: str, episodes: int) -> list[str]:
        """Return the flags of `zoo.evaluate` for the policy that the first round begins with."""
        return self._flags(
            policy=policy,
            split=self.split,
            eval_episodes=episodes,
            output=self.folder / START_FILE,
            params=self._params(opens=True, learns=False),
        )

    def _flags(self, *names: str, **more: Any) -> list[str]:
        return _as_flags({**{name: getattr(self.args, name) for name in (*_OF_ALL, *names)}, **more})

    def _params(self, *, opens: bool, learns: bool) -> list[str]:
        """Return `-params` without the parts of `policy_kwargs` that are not for this: those of learning, those of
        opening a policy, which one that a round saved knows itself."""
        values = key_values(self.args.params)
        if isinstance(policy := values.pop("policy_kwargs", {}), Mapping):
            policy = {name: value for name, value in policy.items() if (learns if name in OF_LEARNING else opens)}
        return as_pairs({**values, "policy_kwargs": policy} if policy else values)

    def round_folder(self, number: int) -> Path:
        """Return the folder of a round."""
        return self.folder / f"round_{number}"

    def run_of(self, number: int) -> RunFolder:
        """Return the run of `zoo.sft` of a round, which may not be there yet."""
        folder = self.round_folder(number) / "sft"
        return RunFolder(max(folder.glob("*"), default=folder))

    def learned(self, number: int) -> int:
        """Return the last round, up to `number`, that learned anything; 0 = none."""
        idle = {one for one, record in enumerate(self.done) if not record.get(LEARNED, True)}
        return next((one for one in range(number, 0, -1) if one not in idle), 0)

    def policy_after(self, number: int) -> str:
        """Return the policy that a round left; before any has learned the one that was given."""
        number = self.learned(number)
        best = self.run_of(number).best
        if number and not holds_policy(best):
            raise BadValue(f"'{best}' holds no policy (any more), from which round {number + 1} would go on")
        return str(best if number else self.args.policy)


def _as_flags(flags: Mapping[str, Any]) -> list[str]:
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
