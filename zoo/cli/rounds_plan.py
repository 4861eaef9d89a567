"""The rounds of `zoo.improve` as flags of the commands that make them up, and where each leaves what it makes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from zoo.cli.agent import OF_LEARNING
from zoo.cli.arguments import as_pairs, flag_of, key_values
from zoo.config.batch_plan import benchmark_of, observation_layout
from zoo.config.run_config import RunConfig
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.runs.folder import RunFolder, holds_policy

START_FILE = "round_0.json"
"""Evaluation of the policy that the first round begins with."""
LEARNED = "learned"
"""False in the record of a round that had nothing to learn."""
ROUNDS, EPISODES, UPDATES = 3, 100, 300
"""Without flags: rounds, and in each the episodes collected and the updates learned."""
_OF_SFT = ("batch_size", "micro_batch_size", "learning_rate", "augment", "paraphrases", "beta", "gamma")
_OF_ALL = ("env", "seed", "num_envs", "device", "num_threads", "gym_packages")


@dataclass(frozen=True, kw_only=True)
class RoundsPlan:
    """What was asked for, checked."""

    args: argparse.Namespace
    """Parsed flags; the seed is set."""
    folder: Path
    """Where it all goes."""
    split: str | None
    """Split of the evaluations; None = not known yet."""
    eval_episodes: int
    """Start states of an evaluation."""
    done: Sequence[Mapping[str, Any]] = ()
    """The rounds so far as `improve.json` has them, from 0 on; grows."""

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
            **{name: getattr(self.args, name) for name in (*_OF_ALL, "temperature")},
            "policy": policy,
            "stochastic": True,
            "keep_failures": True,
            "episodes": self.episodes,
            "skip": (number - 1) * self.episodes,
            "output": self.round_folder(number) / "rollouts",
            "params": self._params(opens=not self.learned(number - 1), learns=False),
        }
        return as_flags(flags)

    def learning(self, number: int, policy: str) -> list[str]:
        """Flags of `zoo.sft` in a round."""
        rollouts = [self.round_folder(one) / "rollouts" for one in range(1, number + 1) if self.episodes]
        flags = {
            **{name: getattr(self.args, name) for name in (*_OF_ALL, *_OF_SFT, "eval_episodes")},
            "policy": policy,
            "weight": self.args.weight or "success",
            "dataset": [*self.args.dataset, *rollouts],
            "n_updates": self.args.n_updates or UPDATES,
            "eval_split": self.split,
            "log_folder": self.round_folder(number),
            "params": self._params(opens=not self.learned(number - 1), learns=True),
        }
        return as_flags(flags)

    def evaluating(self, policy: str) -> list[str]:
        """Flags of `zoo.evaluate` for the policy that the first round begins with."""
        flags = {
            **{name: getattr(self.args, name) for name in _OF_ALL},
            "policy": policy,
            "split": self.split,
            "eval_episodes": self.eval_episodes,
            "output": self.folder / START_FILE,
            "params": self._params(opens=True, learns=False),
        }
        return as_flags(flags)

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

    def learned(self, number: int) -> int:
        """The last round, up to `number`, that learned anything; 0 = none."""
        idle = {one for one, record in enumerate(self.done) if not record.get(LEARNED, True)}
        return next((one for one in range(number, 0, -1) if one not in idle), 0)

    def policy_after(self, number: int) -> str:
        """The policy that a round left; before any has learned the one that was given."""
        number = self.learned(number)
        if not number:
            return str(self.args.policy)
        best = self.run_of(number).best
        if not holds_policy(best):
            raise BadValue(f"'{best}' holds no policy (any more), from which round {number + 1} would go on")
        return str(best)


def as_flags(flags: Mapping[str, Any]) -> list[str]:
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


def check_beside_rollouts(folder: Path, config: RunConfig) -> None:
    """Raise `BadValue` for a dataset that cannot be learned beside what the policy of `config` will record."""
    benchmark = benchmark_of(config)
    (first, *_), side = read_dataset(folder, 1), observation_layout(config, benchmark).image_size
    height, width = first.images["image"].shape[1:3]
    if (height, width) != (side, side):
        raise BadValue(
            f"'{folder}' has pictures of {width} x {height}, rollouts would have {side} x {side}, and neither can be "
            "learned beside the other"
            + (f"; -params image_size:{height} draws rollouts alike" if height == width else "")
        )
    if (numbers := first.action_TA.shape[1]) != benchmark.action_dim:
        raise BadValue(f"'{folder}' has actions of {numbers} numbers, the environment takes {benchmark.action_dim}")
