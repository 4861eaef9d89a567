"""The published rows against a table of the printed figures, copied from the sources by hand."""

from __future__ import annotations

import pytest

from vla_gym.registry import find_benchmark
from zoo.config.hyperparams import packaged_entry
from zoo.evaluation.published import ANY_SUITE, published_rows

# RLinf's documentation and pi_RL's tables, column by column.
PRINTED = {
    # in distribution, vision, semantic, execution, average of OOD
    "plate25-openvla-base": (53.91, 38.75, 35.94, 42.11, 39.10),
    "plate25-openvla-rl4vla": (93.75, 80.47, 75.00, 81.77, 79.15),
    "plate25-openvla-ppo": (96.09, 82.03, 78.35, 85.42, 81.93),
    "plate25-openvla-grpo": (84.38, 74.69, 72.99, 77.86, 75.15),
    "plate25-oft-base": (28.13, 27.73, 12.95, 11.72, 18.29),
    "plate25-oft-ppo": (97.66, 92.11, 64.84, 73.57, 77.05),
    "plate25-oft-grpo": (94.14, 84.69, 45.54, 44.66, 60.64),
    # vision, semantic, position, average
    "plate25-v1-rl4vla": (76.6, 75.4, 77.6, 76.1),
    "plate25-v1-oft-grpo": (84.6, 51.6, 42.9, 61.5),
    "plate25-v1-oft-ppo": (80.5, 56.6, 56.1, 64.5),
    "plate25-v1-openvla-ppo": (82.0, 80.6, 89.3, 82.2),
    "plate25-v1-openvla-grpo": (74.7, 74.4, 81.6, 75.5),
    "plate25-pi0-base": (38.4,),
    "plate25-pi0-flow-sde": (78.8,),
    "plate25-pi0-flow-noise": (77.8,),
    "plate25-pi05-base": (40.1,),
    "plate25-pi05-flow-sde": (90.9,),
    "plate25-pi05-flow-noise": (89.7,),
    # Spatial, Goal, Object, Long, average
    "libero-oft-base": (56.5, 45.6, 25.6, 9.7, 34.4),
    "libero-oft-grpo": (99.0, 99.0, 99.0, 94.4, 97.9),
    # Object, Spatial, Goal, Long, 90, 130
    "libero-130-base": (50.20, 51.61, 49.40, 11.90, 42.67, 42.09),
    "libero-130-publication-base": (72.18, 71.48, 64.06, 48.44, 70.97, 65.43),
    "libero-130-publication-grpo": (99.4, 99.8, 98.79, 93.95, 98.59, 98.11),
    "libero-130-grpo": (99.60, 98.69, 98.09, 93.45, 98.02, 97.85),
    # easy, medium, hard, very hard, average
    "mt50-diffusion-policy": (23.1, 10.7, 1.9, 6.1, 10.5),
    "mt50-tinyvla": (77.6, 21.5, 11.4, 15.8, 31.6),
    "mt50-smolvla": (87.1, 51.8, 70.0, 64.0, 68.2),
    "mt50-pi0-base": (77.9, 51.8, 53.3, 20.0, 50.8),
    "mt50-pi0-ppo": (92.1, 74.6, 61.7, 84.0, 78.1),
    "mt50-pi05-base": (68.2, 37.3, 41.7, 28.0, 43.8),
    "mt50-pi05-ppo": (86.4, 55.5, 75.0, 66.0, 70.7),
    "mt50-pi0-flow-noise": (85.8,),
    "mt50-pi05-flow-noise": (66.1,),
    # Spatial, Object, Goal, Long, average
    "libero-pi0-base": (65.3, 64.4, 49.8, 51.2, 57.6),
    "libero-pi0-grpo": (97.8, 97.8, 83.2, 81.4, 90.0),
    "libero-pi0-ppo": (98.4, 99.4, 96.2, 90.2, 96.0),
    "libero-pi05-base": (84.6, 95.4, 84.6, 43.9, 77.1),
    "libero-pi05-grpo": (97.4, 99.8, 91.2, 77.6, 91.5),
    "libero-pi05-ppo": (99.6, 100.0, 98.8, 93.0, 97.9),
}


def test_every_row_has_its_printed_figures() -> None:
    assert {name: tuple(f.percent for f in row.figures) for name, row in published_rows().items()} == PRINTED


@pytest.mark.parametrize("name", PRINTED)
def test_a_rows_protocol_is_its_environments(name: str) -> None:
    row = published_rows()[name]
    assert row.envs
    horizons = set()
    # Plate25's published files need not be here.
    options = {option: value for option, value in row.protocol.env_kwargs.items() if option != "stand_ins"}
    for env in row.envs:
        benchmark = find_benchmark(env, **options)
        horizons |= {task.horizon for task in benchmark.tasks}
        assert benchmark.simulator_kwargs.get("settle_steps", 0) == row.settle_steps
        grid = sum(task.num_trials for task in benchmark.tasks)
        assert (row.protocol.start_states or grid) <= grid
        known = {task.suite for task in benchmark.tasks}
        assert all(set(figure.suites) <= known for figure in row.figures if env in figure.of)
    assert horizons == set(row.horizon)
    if row.recipe is not None:
        env = row.envs[0] if row.recipe.env == ANY_SUITE else row.recipe.env
        assert packaged_entry(row.recipe.algo, f"{env}/{row.recipe.policy}") is not None


def test_the_libero_130_row_is_sampled_at_1_6_twice_on_6500_start_states() -> None:
    row = published_rows()["libero-130-grpo"]
    assert (row.protocol.sample, row.protocol.temperature, row.protocol.rounds) == (True, 1.6, 2)
    assert sum(task.num_trials for task in find_benchmark("LIBERO-130").tasks) == 6500
    assert not published_rows()["libero-130-base"].protocol.sample
