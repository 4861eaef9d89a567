import math

import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies.actions.flow import (
    FlowSettings,
    bounded_std,
    flow_cps_law,
    flow_sde_law,
    flow_times,
    gaussian_entropy,
    gaussian_log_prob,
    gaussian_velocity,
    join_steps,
    matching_pair,
    matching_times,
    step_mean,
    time_embedding,
)


@pytest.mark.parametrize(
    ("num_steps", "published"),
    [(3, [0.500, 0.408, 0.204]), (4, [0.500, 0.433, 0.250, 0.144]), (5, [0.500, 0.447, 0.274, 0.183, 0.112])],
)
def test_flow_sde_standard_deviations_are_the_published_ones(num_steps: int, published: list[float]) -> None:
    std_J, _ = flow_sde_law(num_steps, 0.5)
    assert [round(std, 3) for std in std_J.tolist()] == published


def test_flow_sde_by_hand() -> None:
    # Two steps of 1/2, a = 0.5. At t = 1/2: sigma^2 = 0.25 * 0.5 / 0.5 = 0.25, std^2 = 0.25 / 2 = 0.125,
    # pull = 0.125 / (2 * 0.5) = 0.125.
    std_J, pull_J = flow_sde_law(2, 0.5)
    assert std_J.tolist() == pytest.approx([0.5, math.sqrt(0.125)])
    assert pull_J.tolist() == pytest.approx([0.125, 0.125])
    # x = 1, v = 3, t = 0.5: action estimate 1 - 1.5 = -0.5, noise estimate 1 + 1.5 = 2.5.
    # mean = (1 - 0) * -0.5 + (0 - 0.125) * 2.5 = -0.8125; the ODE goes to -0.5.
    x, velocity = torch.ones(1, 1, 1), torch.full((1, 1, 1), 3.0)
    time = torch.tensor([0.5])
    assert step_mean(x, velocity, time, 0.5).item() == pytest.approx(-0.5)
    assert step_mean(x, velocity, time, 0.5, torch.tensor([0.125])).item() == pytest.approx(-0.8125)


def test_flow_cps_keeps_the_size_of_the_noise() -> None:
    std_J, pull_J = flow_cps_law(4, 0.5)
    next_J = torch.tensor([0.75, 0.5, 0.25, 0.0], dtype=torch.float64)
    torch.testing.assert_close(std_J.square() + (next_J - pull_J).square(), next_J.square())
    assert std_J[-1] == 0
    assert FlowSettings(scheme="flow_cps").num_random_steps == 3


def test_euler_finds_the_action_of_a_straight_flow() -> None:
    noise, action = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    x = noise
    for time in flow_times(5)[:-1].tolist():
        x = step_mean(x, noise - action, torch.full((2,), time), 0.2)
    torch.testing.assert_close(x, action)


def test_gaussian_log_prob_and_entropy_by_hand() -> None:
    # N(1; 0, 2^2): -1/8 - ln 2 - ln(2 pi) / 2
    got = gaussian_log_prob(torch.tensor(1.0), torch.tensor(0.0), torch.tensor(2.0))
    assert got.item() == pytest.approx(-0.125 - math.log(2.0) - 0.5 * math.log(2.0 * math.pi))
    assert gaussian_entropy(torch.tensor(1.0)).item() == pytest.approx(1.4189385332)
    assert gaussian_log_prob(torch.zeros(2).bfloat16(), torch.zeros(2), torch.ones(2)).dtype == torch.float32


def test_learned_noise_stays_in_its_range() -> None:
    std = bounded_std(torch.tensor([-50.0, 0.0, 50.0]), 0.08, 0.16)
    assert std.tolist() == pytest.approx([0.08, math.sqrt(0.08 * 0.16), 0.16])


def test_joint_log_probability_as_sum_and_as_mean() -> None:
    per_step = torch.tensor([[1.0, 2.0, 6.0]])
    assert join_steps(per_step, "sum").tolist() == [9.0]
    # The initial noise counts as a fourth term.
    assert join_steps(per_step, "mean").tolist() == [2.25]


def test_the_gaussian_velocity_gives_actions_of_the_asked_spread() -> None:
    torch.manual_seed(0)
    x = torch.randn(20_000, 1, 1)
    for time in flow_times(200)[:-1].tolist():
        time_B = torch.full((len(x),), time)
        x = step_mean(x, gaussian_velocity(x, time_B, 0.4), time_B, 1.0 / 200)
    assert x.std().item() == pytest.approx(0.4, rel=0.02)
    assert x.mean().item() == pytest.approx(0.0, abs=0.01)


def test_matching_pair_by_hand() -> None:
    noise, action = torch.full((1, 1, 1), 4.0), torch.full((1, 1, 1), 8.0)
    x, target = matching_pair(noise, action, torch.tensor([0.25]))
    assert (x.item(), target.item()) == (7.0, -4.0)


def test_matching_times_lean_to_the_noise() -> None:
    # 0.125^(1 / 1.5) = 0.25: an eighth of the times lie in the first quarter.
    by_hand = matching_times(torch.tensor([0.0, 0.125, 1.0], dtype=torch.float64))
    assert by_hand.tolist() == pytest.approx([0.001, 0.999 * 0.25 + 0.001, 1.0])
    assert by_hand.dtype == torch.float32
    # The mean of Beta(1.5, 1) is 0.6.
    time = matching_times((torch.arange(20_000) + 0.5) / 20_000)
    assert time.mean().item() == pytest.approx(0.999 * 0.6 + 0.001, abs=1e-4)


def test_time_embedding_by_hand() -> None:
    # Periods 4e-3 and 4: at t = 1 the angles are 500 pi and pi / 2.
    got = time_embedding(torch.tensor([1.0]), 4)
    assert got.dtype == torch.float64
    # Angles: 2 pi / 4e-3 = 500 pi (sine 0, cosine 1) and 2 pi / 4 = pi / 2 (sine 1, cosine 0).
    assert got[0].tolist() == pytest.approx([0.0, 1.0, 1.0, 0.0], abs=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_steps": 0},
        {"noise_level": 0.0},
        {"noise_level": 1e300},
        {"noise_std": (0.2, 0.1)},
        {"num_steps": 1, "last_step_random": False},
    ],
)
def test_wrong_settings_are_named(settings: dict) -> None:
    with pytest.raises(BadValue, match=next(iter(settings))):
        FlowSettings(**settings)
