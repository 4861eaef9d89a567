"""Success of experts when they were measured, per task: the reference of `zoo.doctor --oracle`.

Regenerate a block with `python -m zoo.doctor --oracle --env ID --episodes N`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vla_gym.adapters.metaworld.tasks import MT10
from vla_gym.specs import Task
from zoo.evaluation.statistics import Rate, together

EPISODES = 50
"""Start states on which a task of Meta-World or ManiSkill was measured: all, or the first, of the training split."""
_LIBERO_EPISODES = 20
"""The same of a LIBERO task: its first."""
_LIBERO: dict[str, dict[str, int]] = {
    "libero_object": dict.fromkeys(
        (
            *("alphabet_soup", "cream_cheese", "salad_dressing", "bbq_sauce", "ketchup"),
            *("tomato_sauce", "butter", "milk", "chocolate_pudding", "orange_juice"),
        ),
        20,
    ),
    "libero_spatial": {
        "black_bowl_between_the_plate_and_the_ramekin": 20,
        "black_bowl_next_to_the_ramekin": 20,
        "black_bowl_from_table_center": 20,
        "black_bowl_on_the_cookie_box": 20,
        "black_bowl_in_the_top_drawer_of_the_wooden_cabinet": 19,
        "black_bowl_on_the_ramekin": 20,
        "black_bowl_next_to_the_cookie_box": 20,
        "black_bowl_on_the_stove": 20,
        "black_bowl_next_to_the_plate": 20,
        "black_bowl_on_the_wooden_cabinet": 20,
    },
}
"""Suite -> task, `THING` of "pick_up_the_THING_and_place_it_...", -> start states solved within the default horizon."""
_MANISKILL = {"PickCube": 50, "PushCube": 50, "PullCube": 50, "StackCube": 49, "PlaceSphere": 50}
"""Task -> start states solved, the first of the training split, on CPU physics."""
_META_WORLD = dict.fromkeys(MT10, 50)
"""Task -> start states solved within `_META_WORLD_HORIZON` steps."""
_META_WORLD_HORIZON = 100


def expert_success_rate(tasks: Iterable[Task]) -> Rate | None:
    """Return the rate of all tasks together; None where one is new, or has less time than it was measured with."""
    rates = [_rate(task) for task in tasks]
    known = [rate for rate in rates if rate is not None]
    if not rates or len(known) < len(rates):
        return None
    return together("known", known)


def _rate(task: Task) -> Rate | None:
    solved = _solved(task)
    if solved is None:
        return None
    episodes = _LIBERO_EPISODES if task.suite in _LIBERO else EPISODES
    return Rate(label=task.name, successes=solved, episodes=episodes)


def _solved(task: Task) -> int | None:
    if task.suite in _LIBERO:
        thing = task.name.removeprefix("pick_up_the_").partition("_and_place_it_")[0]
        return _LIBERO[task.suite].get(thing)
    if task.suite == "maniskill":
        return _MANISKILL.get(task.name)
    return _META_WORLD.get(task.name) if task.horizon >= _META_WORLD_HORIZON else None
