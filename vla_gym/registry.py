"""The table of environment ids: the function that builds each one's `Benchmark`, and its name in Gymnasium.

A new benchmark of this package is one `Family` here and its modules in `adapters/`. One from outside is a call of
`register_benchmark` in a module that `--gym-packages` names, or a distribution's entry point in the group
`vla_zoo.benchmarks` (`my_robot = "my_robot.tasks"`), imported once an id is looked up. No simulator is imported, and a
family's function only when one of its ids is used.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import gymnasium as gym

from vla_gym.adapters.libero import plus_tasks as libero_plus_tasks
from vla_gym.adapters.libero import tasks as libero_tasks
from vla_gym.adapters.maniskill import tasks as maniskill_tasks
from vla_gym.adapters.metaworld import tasks as metaworld_tasks
from vla_gym.adapters.plate25 import tasks as plate25_tasks
from vla_gym.errors import BadValue, UnknownName, VLAZooError, check_integer, check_known, shown, unknown_name
from vla_gym.specs import Benchmark

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Environment ids that one function builds."""

    build: str
    """Entry point "module:function", called as `function(env_id, **options) -> Benchmark`."""
    num_tasks: Mapping[str, int]
    """Listed id -> tasks. With more than one, `<id>/<k>` is the benchmark of task k alone."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other name -> listed id."""


FAMILIES: tuple[Family, ...] = (
    Family(
        build="vla_gym.adapters.libero.tasks:libero_benchmark",
        num_tasks={
            "LIBERO-Spatial": 10,
            "LIBERO-Object": 10,
            "LIBERO-Goal": 10,
            "LIBERO-Long": 10,
            "LIBERO-90": 90,
            "LIBERO-130": 130,
        },
        aliases={"LIBERO-10": "LIBERO-Long"},
    ),
    Family(
        build="vla_gym.adapters.libero.tasks:libero_pro_benchmark",
        num_tasks=dict.fromkeys(libero_tasks.pro_suites(), libero_tasks.NUM_TASKS),
        aliases={f"LIBERO-10-PRO-{kind}": f"LIBERO-Long-PRO-{kind}" for kind in libero_tasks.PERTURBATIONS},
    ),
    Family(
        build="vla_gym.adapters.libero.plus_tasks:libero_plus_benchmark",
        num_tasks=libero_plus_tasks.num_tasks(),
        aliases={f"LIBERO-10-Plus-{axis}": f"LIBERO-Long-Plus-{axis}" for axis in libero_plus_tasks.AXES},
    ),
    Family(build="vla_gym.adapters.maniskill.tasks:maniskill_benchmark", num_tasks=maniskill_tasks.NUM_TASKS),
    Family(build="vla_gym.adapters.metaworld.tasks:metaworld_benchmark", num_tasks=metaworld_tasks.NUM_TASKS),
    Family(
        build="vla_gym.adapters.plate25.tasks:plate25_benchmark",
        num_tasks=plate25_tasks.NUM_TASKS,
        aliases=plate25_tasks.ALIASES,
    ),
    Family(build="vla_gym.adapters.toy:toy_benchmark", num_tasks={"Toy-Reach": 3}),
)


MOST_LISTED = 130
"""Tasks of a benchmark up to which each is registered with Gymnasium, 1 ms each; `find_benchmark` takes any."""
_LENGTH = "max_episode_steps"
"""Option of every benchmark beside its family's."""
_ADDED: list[Family] = []
"""Families from outside this package."""


def register_benchmark(build: str, num_tasks: Mapping[str, int], *, aliases: Mapping[str, str] | None = None) -> None:
    """Add environment ids to everything that takes one: `make_vec`, Gymnasium, the commands.

    Args:
        build: entry point "module:function", called as `function(env_id, **options) -> Benchmark`; keyword-only
            parameters are the benchmark's options (at least `split`, which `make_vec` always passes).
        num_tasks: id -> number of tasks. With more than one, `<id>/<k>` is the benchmark of task k alone.
        aliases: other name -> id.

    Repeating a call changes nothing. Raises `BadValue` for an id that is taken or that Gymnasium does not allow, and
    for a malformed entry point.
    """
    family = Family(build=build, num_tasks=dict(num_tasks), aliases=dict(aliases or {}))
    if family in _ADDED:
        return
    if not re.fullmatch(r"[\w.]+:\w+", build):
        raise BadValue(f"build must be an entry point 'module:function', got {shown(build)}")
    for name in (*family.num_tasks, *family.aliases):
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*(/[A-Za-z][\w-]*)?", name):
            raise BadValue(
                f"environment id {shown(name)} is not allowed: letters, digits, '_' and '-', then perhaps one slash "
                "and a name that is no number"
            )
        if name in _table():
            raise BadValue(f"environment id '{name}' is taken; choose another one")
    for name, listed in family.aliases.items():
        check_known(f"id for the alias '{name}'", listed, family.num_tasks)
    _ADDED.append(family)
    register_all()


def gymnasium_id(env_id: str) -> str:
    """Return Gymnasium's name of an environment id; a slash becomes a dot: `vla_gym/LIBERO-Spatial.3-v0`."""
    return f"vla_gym/{env_id.replace('/', '.')}-v0"


def register_all() -> None:
    """Register every listed id and its single tasks with Gymnasium, unless they are registered already."""
    for env_id, (family, listed) in _table().items():
        count = family.num_tasks[listed]
        for name in (env_id, *(f"{env_id}/{task}" for task in range(count) if 1 < count <= MOST_LISTED)):
            if gymnasium_id(name) not in gym.registry:
                gym.register(
                    id=gymnasium_id(name),
                    entry_point="vla_gym.single_env:VLAEnv",
                    vector_entry_point="vla_gym.make:make_vec",
                    kwargs={"env_id": name},
                )


@functools.cache
def _import_plugins() -> None:
    for plugin in entry_points(group="vla_zoo.benchmarks"):
        try:
            plugin.load()
        except (ImportError, AttributeError, VLAZooError) as error:
            _log.warning(f"the benchmark plug-in '{plugin.value}' is left out: {type(error).__name__}: {error}")


def list_envs() -> list[str]:
    """Return every environment id, without single tasks (`LIBERO-Spatial/3`)."""
    _import_plugins()
    return sorted(_table())


def num_tasks(env_id: str) -> int:
    """Return the number of tasks of a listed id; does not import its adapter."""
    family, listed, _ = _parsed(env_id)
    return family.num_tasks[listed]


def canonical_id(env_id: str) -> str:
    """Return the listed spelling of an id, or of a single task's, that differs in case only; else `env_id` itself."""
    _import_plugins()
    by_fold = {name.casefold(): name for name in _table()}
    suite, slash, task = env_id.rpartition("/")
    return by_fold.get(env_id.casefold()) or f"{by_fold.get(suite.casefold(), suite)}{slash}{task}"


def option_names(env_id: str) -> tuple[str, ...]:
    """Return names of the options that `find_benchmark` takes for an id, or for a single task's; raises as it does."""
    parameters = inspect.signature(pkgutil.resolve_name(_parsed(env_id)[0].build)).parameters.values()
    own = (parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY)
    return (*own, _LENGTH)


def find_benchmark(env_id: str, /, *, max_episode_steps: int | None = None, **options: Any) -> Benchmark:
    """Return the benchmark of an id such as "LIBERO-Spatial" or, for one task, "LIBERO-Spatial/3"; any case will do.

    Args:
        env_id: a listed id, or one with `/<task index>`.
        max_episode_steps: policy steps after which every episode is cut off, instead of the protocol's horizon.
        options: of the family's function (`split`, a protocol ...).

    Raises:
        UnknownName: for an id, a task or an option that does not exist.
        BadValue: for a value that is not allowed.
    """
    family, listed, task = _parsed(env_id)
    for option in options:
        check_known(f"option of {listed}", option, option_names(listed))
    benchmark: Benchmark = pkgutil.resolve_name(family.build)(listed, **options)
    if benchmark.split == Benchmark.split:  # its function set none
        benchmark = dataclasses.replace(benchmark, split=options.get("split", benchmark.split))
    if task is not None:
        last = len(benchmark.tasks) - 1
        if not (task.isascii() and task.isdigit() and int(task) <= last):
            raise UnknownName(
                f"no task '{task}' in {listed}. Known: {listed}/0 .. {listed}/{last}. "
                f"Did you mean '{listed}/{last if task.isdigit() else 0}'?"
            )
        benchmark = dataclasses.replace(benchmark, id=f"{listed}/{int(task)}", tasks=(benchmark.tasks[int(task)],))
    if max_episode_steps is None:
        return benchmark
    check_integer(_LENGTH, max_episode_steps, 1)
    return dataclasses.replace(
        benchmark,
        tasks=tuple(dataclasses.replace(task, horizon=max_episode_steps) for task in benchmark.tasks),
        protocol={**benchmark.protocol, _LENGTH: max_episode_steps},
    )


def _table() -> dict[str, tuple[Family, str]]:
    """Return each id's family and the id it is listed under, which is another one for an alias."""
    return {
        name: (family, listed)
        for family in (*FAMILIES, *_ADDED)
        for name, listed in (*zip(family.num_tasks, family.num_tasks, strict=True), *family.aliases.items())
    }


def _parsed(env_id: str) -> tuple[Family, str, str | None]:
    """Return the family of an id, the id it is listed under, and the task after a slash, if any."""
    found, table = canonical_id(env_id), _table()
    if found in table:
        return (*table[found], None)
    suite, _, task = found.rpartition("/")
    if suite not in table:
        raise unknown_name("environment", found, table)
    return (*table[suite], task)


register_all()
