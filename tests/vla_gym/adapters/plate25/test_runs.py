from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from vla_gym.adapters.plate25.runs import MAIN, RUNS, Episode, Run, distractor

EVERY = [*MAIN.values(), *RUNS.values()]


@pytest.mark.parametrize(
    ("run", "total"),
    [
        (MAIN["train"], 802_816),  # 16 objects, 16 tables, 784 pairs, 4 yaws
        (MAIN["test"], 141_120),  # 9 * 5 * 784 * 4
        (MAIN["all"], 1_646_400),  # 25 * 21 * 784 * 4
        (RUNS["VisionImage"], 250_880),  # 16 * 5 * 784 * 4
        (RUNS["VisionWhole05"], 12_845_056),  # 16 objects, 16 textures, 16 tables, 784, 4
        (RUNS["Carrot"], 451_584),  # 9 * 16 * 784 * 4
        (RUNS["Plate"], 12_845_056),  # 16 objects, 16 plates, 16 tables, 784, 4
        (RUNS["MultiCarrotTrain"], 32_317_440),  # 16 * 15 * 16 * 2104 * 4
        (RUNS["MultiCarrotTest"], 9_695_232),  # 9 * 8 * 16 * 2104 * 4
        (RUNS["MultiPlateTrain"], 45_244_416),  # 16 * 1 * 16 * 21 * 2104 * 4
        (RUNS["MultiPlateTest"], 678_666_240),  # 16 * 16 * 15 * 21 * 2104 * 4
        (RUNS["Position"], 643_072),  # 16 * 16 * 628 * 4
        (RUNS["EEPose"], 11_540_480_000),  # 16 * 14375 * 16 * 784 * 4
        (RUNS["PositionChangeTo"], 2_154_496),  # 16 * 16 * 2104 * 4
    ],
)
def test_totals(run: Run, total: int) -> None:
    assert run.total == total


def test_an_id_by_hand() -> None:
    # Training set: 3 * 50176 (object 3) + 2 * 3136 (table 2) + 5 * 4 (position 5) + 1 (yaw 1) = 156821
    assert MAIN["train"].episode(156_821) == Episode(object=3, table=2, position=5, yaw=1)
    # Test split: digits count from object 16 and table 16.
    assert MAIN["test"].episode(0) == Episode(object=16, table=16, position=0, yaw=0)
    # MultiPlateTest: object 1, plate digit 2 (which is plate 3), second 4, table 20, position 7, yaw 3.
    number = ((((1 * 16 + 2) * 15 + 4) * 21 + 20) * 2104 + 7) * 4 + 3
    assert RUNS["MultiPlateTest"].episode(number) == Episode(object=1, plate=3, second=4, table=20, position=7, yaw=3)


@pytest.mark.parametrize("run", EVERY, ids=lambda run: run.name or run.upstream)
def test_every_id_is_another_episode(run: Run) -> None:
    rng = np.random.default_rng(0)
    numbers = {0, run.total - 1, *rng.integers(run.total, size=200).tolist()}
    assert len({run.episode(number) for number in numbers}) == len(numbers)


@pytest.mark.parametrize("run", EVERY, ids=lambda run: run.name or run.upstream)
def test_start_states_are_all_there_and_the_first_few_spread(run: Run) -> None:
    per_task = -(-256 // run.num_tasks)
    first = [run.start(task, trial) for task in range(run.num_tasks) for trial in range(per_task)]
    assert len(set(first)) == len(first)
    assert all(number // run.trials == i // per_task for i, number in enumerate(first))
    episodes = [run.episode(number) for number in first]
    tables = Counter(episode.table for episode in episodes)
    published = next(count for digit, count, _ in run.digits if digit == "table")
    assert len(tables) == published
    assert max(tables.values()) <= 2 * min(tables.values())
    assert len({episode.position for episode in episodes}) > 150
    assert len({episode.yaw for episode in episodes}) == 4


def test_the_distractor_is_never_the_target() -> None:
    for name in ("MultiCarrotTrain", "MultiCarrotTest", "MultiPlateTrain", "MultiPlateTest"):
        run = RUNS[name]
        count = next(n for digit, n, _ in run.digits if digit == "second")
        things, _, _ = run.tasks[3]
        for second in range(count):
            episode = Episode(object=things, plate=run.tasks[3][1], table=0, position=0, yaw=0, second=second)
            target = episode.object if run.second == "object" else episode.plate
            assert distractor(run, episode, as_published=False) != target


def test_the_published_slip_hits_the_target_at_second_1() -> None:
    run = RUNS["MultiCarrotTest"]
    # Object 20, second 1: (20 + 1 + 1) mod 9 + 16 = 20, the target itself; mended (4 + 1 + 1) mod 9 + 16 = 22.
    episode = Episode(object=20, table=0, position=0, yaw=0, second=1)
    assert distractor(run, episode, as_published=True) == 20
    assert distractor(run, episode, as_published=False) == 22
    # Training objects start at 0, where the slip changes nothing: (3 + 14 + 1) mod 16 = 2.
    trained = Episode(object=3, table=0, position=0, yaw=0, second=14)
    for as_published in (True, False):
        assert distractor(RUNS["MultiCarrotTrain"], trained, as_published=as_published) == 2
