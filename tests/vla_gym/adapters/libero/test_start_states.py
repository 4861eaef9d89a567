"""Sampled start states of LIBERO on the simulator: valid, repeatable, and placed as upstream's own samplers place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.vla_gym.adapters.libero import libero_probe
from vla_gym import find_benchmark, make_vec
from vla_gym.errors import UnknownName

pytestmark = pytest.mark.sim
Probe = Callable[..., Any]
TASKS = ("LIBERO-Object/4", "LIBERO-Spatial/4")
"""Seven things on the floor; and a bowl in an open drawer, which moves with it, beside one on top of the cabinet."""
SAMPLED = ("train:0", "train:1", "test:0", "test:999")


@pytest.fixture(scope="module", params=[pytest.param(TASKS[0], marks=pytest.mark.thorough), TASKS[1]])
def seen(request: pytest.FixtureRequest, probe: Probe) -> tuple[str, dict[str, Any]]:
    return request.param, probe(libero_probe.settled, request.param, ("published:0", *SAMPLED))


def test_things_stay_where_they_are_put_and_the_task_is_to_be_done(seen: tuple[str, dict[str, Any]]) -> None:
    _, starts = seen
    for name in SAMPLED:
        assert starts[name]["slid"] < 0.02, name
        assert not starts[name]["solved"]
        # What settles lower than in the published state has fallen from somewhere.
        np.testing.assert_allclose(starts[name]["heights"], starts["published:0"]["heights"], atol=0.01)
    assert len({start["fingerprint"] for start in starts.values()}) == len(starts)
    arms = np.array([start["row"][1:8] for start in starts.values()])
    assert len(np.unique(arms[:, 0])) == len(arms)


def test_the_published_states_lie_in_the_regions_that_are_drawn_from() -> None:
    from vla_gym.adapters.libero.compile import start_regions, start_states

    (task,) = find_benchmark(TASKS[0]).tasks
    rows = start_states(task.suite, task.name)
    for placing in start_regions(task.suite, task.name).placings:
        assert placing.qpos is not None
        for axis, ends in enumerate((placing.x_range, placing.y_range)):
            low, high = sorted(placing.base_3[axis] + end for end in ends)
            places = rows[:, 1 + placing.qpos + axis]
            assert low - 1e-9 <= places.min() <= places.max() <= high + 1e-9, placing.name
            assert np.ptp(places) >= 0.8 * (high - low), placing.name  # of 50 uniform ones, but once in a thousand
        np.testing.assert_allclose(rows[:, 3 + placing.qpos], placing.base_3[2], atol=1e-9)


def test_upstreams_samplers_place_things_in_the_same_way(probe: Probe) -> None:
    answer = probe(libero_probe.samplers, TASKS[0], 5)
    assert answer["objects"] == answer["expected"] == 7
    assert answer["apart"] < 1e-6  # upstream multiplies turns in float32


def test_the_vector_environment_deals_sampled_starts_the_same_in_every_process(
    seen: tuple[str, dict[str, Any]],
) -> None:
    env_id, starts = seen
    envs = make_vec(env_id, 2, sampled_starts=1000, split="test", num_workers=1, image_size=64)
    try:
        assert envs.benchmark.tasks[0].num_trials == 1000
        record = envs.protocol()
        _, infos = envs.reset(options={"task_id": np.array([0, 0]), "trial_id": np.array([999, 0])})
    finally:
        envs.close()
    assert record["options"] == {"sampled_starts": 1000}
    assert record["constants"]["trials_per_task"] == 1000
    assert "split test" in record["constants"]["start_states"]
    assert infos["start_state"].tolist() == [starts[name]["fingerprint"] for name in ("test:999", "test:0")]


def test_the_published_protocol_is_the_default_and_called_so() -> None:
    default, drawn = find_benchmark("LIBERO-Object"), find_benchmark("LIBERO-Object", sampled_starts=50)
    assert default == find_benchmark("LIBERO-Object", sampled_starts=0)
    assert default.simulator_kwargs["starts"] == "published"
    assert (default.start_kind, drawn.start_kind) == ("start states", "sampled start states (split train)")
    assert default.protocol["start_states"] != drawn.protocol["start_states"]
    with pytest.raises(UnknownName, match="sampled_starts"):
        find_benchmark("LIBERO-Object-PRO-lan", sampled_starts=50)
