"""The state of a run: in files, over ranks, and of its random generators."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue
from vla_gym.observation import encode_instruction
from zoo.distributed.process_group import ProcessGroup
from zoo.runs.train_state import Counters, TrainState, observation_arrays, rng_state, set_rng_state


def draw() -> tuple[list[float], list[float], list[float]]:
    return (
        [random.random(), random.gauss(0, 1)],  # noqa: S311
        [*np.random.random(3).tolist(), float(np.random.normal())],
        torch.rand(3).tolist(),
    )


def test_drawing_again_after_going_back_gives_the_same_numbers():
    # An odd number of Gaussian draws leaves half a pair behind, which is state too.
    random.gauss(0, 1)
    np.random.normal()
    saved = json.loads(json.dumps(rng_state()))
    first = draw()
    assert draw() != first
    set_rng_state(saved)
    assert draw() == first


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_run_of_a_gpu_goes_on_without_one():
    saved = rng_state()
    first = draw()
    set_rng_state({**saved, "cuda": "AAAA"})
    assert draw() == first


FILED = {
    "num_timesteps": 32,
    "_total_timesteps": 64,
    "_num_timesteps_at_start": 8,
    "_episode_num": 0,
    "_n_updates": 3,
    "_updates_done": 2,
    "_current_progress_remaining": 0.5,
    "noise_seed": 7,
    "_needs_reset": True,
    "_barren_updates": 1,
    "_barren_episodes": 8,
}
"""Counters as GRPO's checkpoints have held them since the first version."""


def test_counters_are_filed_under_the_names_they_always_had():
    counters = Counters.from_json(FILED)
    assert counters.updates_done == 2
    assert counters.progress_remaining == 0.5
    assert counters.needs_reset is True
    assert (counters.no_signal_updates, counters.no_signal_episodes) == (1, 8)
    assert json.loads(json.dumps(counters.to_json())) == FILED


def state(numbers: list[int], **env: Any) -> TrainState:
    """Of one sub-environment for each number."""
    return TrainState(
        counters=Counters.from_json(FILED),
        episodes=({"r": 1.0},),
        successes=(1.0,),
        rng={},
        env={"seed": 3, "episodes": [f"episode {number}" for number in numbers], "slots": numbers, **env},
        arrays=observation_arrays({"image": np.array(numbers)}, np.array(numbers) > 0),
        starts={"episodes": [2.0], "successes": [1.0]},
    )


class RankZeroOfTwo(ProcessGroup):
    """Rank 0, that is sent the state of rank 1."""

    def __init__(self, other: TrainState) -> None:
        super().__init__(0, 2)
        self.other = other

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value, self.other.env]

    def gather(self, arrays: Any) -> list[Any]:
        return [dict(arrays), dict(self.other.arrays)]


def test_ranks_states_join_and_part_again():
    first, second = state([0, 1]), state([2, 3], seed="of rank 1")
    joined = first.gather(RankZeroOfTwo(second))
    assert joined is not None
    assert joined.env == {
        "seed": 3,
        "episodes": ["episode 0", "episode 1", "episode 2", "episode 3"],
        "slots": [0, 1, 2, 3],
    }
    assert joined.arrays["obs/image"].tolist() == [0, 1, 2, 3]
    assert joined.arrays["episode_starts"].tolist() == [False, True, True, True]
    part = joined.scatter(slice(1, 3), 4)
    assert part.env == {"seed": 3, "episodes": ["episode 1", "episode 2"], "slots": [1, 2]}
    assert part.last_obs["image"].tolist() == [1, 2]
    assert (part.counters, part.episodes, part.successes) == (first.counters, ({"r": 1.0},), (1.0,))
    assert part.starts == joined.starts == first.starts, "counts are of all ranks already"


def test_a_state_of_another_number_of_environments_is_refused():
    with pytest.raises(BadValue, match="of 2 environments, this run has 4 on all its processes"):
        state([0, 1]).scatter(slice(0, 2), 4)


def test_a_run_from_before_sentences_were_as_long_goes_on():
    former = np.zeros((2, 160), np.uint8)
    former[:, :5] = np.frombuffer(b"reach", np.uint8)
    restored = replace(state([0, 1]), arrays=observation_arrays({"instruction": former}, None)).last_obs["instruction"]
    assert np.array_equal(restored, np.stack([encode_instruction("reach")] * 2))
