"""`--placement env=0-3,rollout=4-7,actor=0-7`: which ranks simulate, which decide, which learn. Pure.

Roles
├── env       owns simulators and serves them to rollout ranks
├── rollout   holds the policy and decides
└── actor     holds the policy and trains it

`all` puts every role on every rank: each has its own environments, decides for them and trains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vla_gym.errors import BadValue, shown, unknown_name
from zoo.config.batch_plan import check_division
from zoo.config.memory_plan import ROLES
from zoo.config.settings import MOST_PROCESSES

ALL = "all"
_EXAMPLE = "env=0-1,rollout=2,actor=3"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Rank numbers of each role, ascending."""

    env: tuple[int, ...]
    """Ranks that simulate."""
    rollout: tuple[int, ...]
    """Ranks that decide."""
    actor: tuple[int, ...]
    """Ranks that learn; the first of them prints and writes."""
    size: int
    """W, processes of the run."""

    @property
    def everywhere(self) -> bool:
        """Whether every rank has every role."""
        return all(getattr(self, role) == tuple(range(self.size)) for role in ROLES)

    @property
    def remote_envs(self) -> bool:
        """Whether rollout ranks step simulators of other ranks."""
        return self.env != self.rollout

    @property
    def weights_to(self) -> tuple[int, ...]:
        """Ranks that decide with weights sent by the first actor rank."""
        return tuple(rank for rank in self.rollout if rank not in self.actor)

    def servers_of(self, rollout: int) -> tuple[tuple[int, int], ...]:
        """(env rank, index of its connection) that a rollout rank's sub-environments are dealt to, in order."""
        place, served, servers = self.rollout.index(rollout), len(self.rollout), len(self.env)
        if servers >= served:
            share = servers // served
            return tuple((rank, 0) for rank in self.env[place * share : (place + 1) * share])
        share = served // servers
        return ((self.env[place // share], place % share),)

    @property
    def clients(self) -> int:
        """Rollout ranks that each env rank serves."""
        return max(1, len(self.rollout) // len(self.env))


def parse_placement(text: str, size: int) -> Placement:
    """Return the placement that `text` describes on `size` processes.

    Raises `UnknownName` for another role, `BadValue` for ranks that do not exist, are missing, idle or overlap badly.
    """
    if text == ALL:
        return _checked(dict.fromkeys(ROLES, tuple(range(size))), text, size)
    processes_named(text)
    ranks: dict[str, tuple[int, ...]] = {}
    for part in re.split(r",(?=[^,]*=)", text):
        role, _, items = (piece.strip() for piece in part.partition("="))
        if items and role not in ROLES:
            raise unknown_name("role in --placement", role, ROLES)
        if not items or role in ranks:
            raise BadValue(f"--placement must be '{ALL}' or give each role once, like {_EXAMPLE}, got '{text}'")
        ranks[role] = _ranks(items, f"--placement {text}: {role}", size)
    if lacking := [name for name in ROLES if name not in ranks]:
        raise BadValue(f"--placement {text} lacks {' and '.join(lacking)}. Example: {_EXAMPLE}")
    return _checked(ranks, text, size)


def _ranks(items: str, where: str, size: int) -> tuple[int, ...]:
    if items == ALL:
        return tuple(range(size))
    ranks: list[int] = []
    for item in items.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        span = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not span or set(span) & set(ranks):
            raise BadValue(f"{where} must be ranks such as 3, 0-3 or {ALL}, each once, got '{item}'")
        ranks += span
    return tuple(sorted(ranks))


def processes_named(text: str) -> int:
    """Return the number of processes up to the largest rank in a placement, 1 without a rank.

    Raises `BadValue` where no run has so many.
    """
    largest = max(re.findall(r"\d+", text), key=lambda number: (len(number), number), default="0")
    if len(largest) > len(str(MOST_PROCESSES)) or int(largest) >= MOST_PROCESSES:
        raise BadValue(f"--placement names rank {shown(largest)}; a run has at most {MOST_PROCESSES} processes")
    return int(largest) + 1


def _checked(ranks: dict[str, tuple[int, ...]], text: str, size: int) -> Placement:
    role = max(ROLES, key=lambda name: ranks[name][-1])
    if (most := ranks[role][-1]) >= size:
        have = f"{size} processes, ranks 0-{size - 1}" if size > 1 else "1 process"
        raise BadValue(
            f"--placement {text}: {role} names rank {most}, but the run has {have}. Start it with: accelerate launch "
            f"--num_processes {most + 1} -m zoo.train ... On CPUs: accelerate launch --config_file "
            f"<cpu.yaml of hyperparams/accelerate> --num_processes {most + 1} -m zoo.train ..."
        )
    idle = set(range(size)) - {rank for some in ranks.values() for rank in some}
    if idle:
        raise BadValue(
            f"--placement {text} gives rank {min(idle)} of {size} nothing to do; name it or start fewer processes"
        )
    env, rollout = ranks["env"], ranks["rollout"]
    if env != rollout and set(env) & set(rollout):
        raise BadValue(
            f"--placement {text}: env and rollout ranks must be the same or share none, got both on rank "
            f"{min(set(env) & set(rollout))}"
        )
    if len(env) % len(rollout) and len(rollout) % len(env):
        raise BadValue(
            f"--placement {text}: {len(env)} env ranks are not dealt evenly to {len(rollout)} rollout ranks; one "
            "number must divide the other"
        )
    return Placement(**ranks, size=size)


def check_shares(placement: Placement, *, num_envs: int, num_stages: int, group_size: int) -> None:
    """Raise `BadValue` unless every role's ranks get equal shares of the environments, groups and stages whole."""
    check_division(num_envs, num_ranks=len(placement.rollout), num_stages=num_stages, group_size=group_size)
    check_division(num_envs, num_ranks=len(placement.actor), num_stages=1, group_size=group_size)
    if placement.remote_envs:
        most = max(len(placement.env), len(placement.rollout))
        check_division(num_envs, num_ranks=most, num_stages=1, group_size=1)


def check_staleness(placement: Placement, max_staleness: int, algo: str) -> None:
    """Raise `BadValue` where no rank could collect while others learn, and for algorithms but PPO."""
    if max_staleness and algo != "ppo":
        raise BadValue(f"max_staleness={max_staleness} is for ppo, got {algo}; leave it at 0")
    both = set(placement.rollout) & set(placement.actor)
    if max_staleness and both:
        raise BadValue(
            f"max_staleness={max_staleness} needs rollout ranks that do not learn, got rank {min(both)} doing both. "
            f"Example: --placement {_EXAMPLE}; or max_staleness:0"
        )


def check_same_kind(placement: Placement, asked: str, former: str) -> None:
    """Raise `BadValue` where only one of two placements has every role on every rank.

    They are `asked`, which means `placement`, and the `former` one of the run that goes on.
    """
    try:
        before = parse_placement(former, placement.size)
    except BadValue:  # of another number of processes
        before = parse_placement(former, processes_named(former))
    if placement.everywhere != before.everywhere:
        raise BadValue(
            f"--placement {asked} cannot go on with a run of --placement {former}: only one of them has every role on "
            "every process, where episodes under way are kept. Leave out --placement to go on as the run was made"
        )


def block(place: int, count: int, num_envs: int) -> range:
    """Return sub-environments (of all `num_envs`) of rank `place` among `count`: equal adjacent blocks."""
    return range(place * num_envs // count, (place + 1) * num_envs // count)


def overlap(first: range, second: range) -> range:
    """Return sub-environments that both blocks hold; may be empty."""
    start = max(first.start, second.start)
    return range(start, max(start, min(first.stop, second.stop)))
